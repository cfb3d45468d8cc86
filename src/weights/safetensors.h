// Safetensors files: reading with all checks of the format, and writing that survives a crash.
//
// Files that Neap writes have checksums of the header and of each tensor in their metadata. Other
// readers ignore them. If another program rewrites the file, the checksums no longer match the
// header and are ignored.
//
// Needs no torch. Bytes are read with pread instead of a mapping, so that a file that is truncated
// while it is open causes an error, not a SIGBUS.
//
// Threads   readers and writers may be used by several threads at once.
//
// Failure   neap::Error naming the file and the tensor.
//
// Cost      opening reads the header only; reading copies once, directly to the caller's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/types/dtype.h"

namespace neap::weights {

/// Bits per element by the format's name ("BF16", "F32", ...); 0 for an unknown name.
[[nodiscard]] int bits_of_dtype(std::string_view dtype);
/// The format's names of the types that models compute with.
struct DtypeName {
  spec::Dtype type;
  const char* name;
};
constexpr std::array<DtypeName, 6> kDtypeNames = {{{spec::Dtype::kBool, "BOOL"},
                                                   {spec::Dtype::kInt64, "I64"},
                                                   {spec::Dtype::kBfloat16, "BF16"},
                                                   {spec::Dtype::kFloat16, "F16"},
                                                   {spec::Dtype::kFloat32, "F32"},
                                                   {spec::Dtype::kFloat64, "F64"}}};
[[nodiscard]] const char* dtype_name(spec::Dtype dtype);

/// Description of a tensor, without its bytes.
struct TensorInfo {
  std::string name;
  std::string dtype;  ///< the format's: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  bool weights = false;  ///< a model's weights: writing non-finite values is an error
};

/// A tensor of a file.
struct TensorEntry : TensorInfo {
  std::uint64_t begin = 0, end = 0;  ///< within the file's data
  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

class SafetensorsFile {
 public:
  /// Reads and checks the header:
  ///
  /// - its size, JSON without repeated keys, and known dtypes;
  /// - shapes whose product does not overflow and agrees with the offsets;
  /// - data without holes or overlaps that ends at the end of the file.
  [[nodiscard]] static SafetensorsFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const;
  /// Tensors in the order of their data.
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const;
  /// Metadata without the checksums.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  /// Null if the file lacks the name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// Fills `out` with the tensor's bytes from `offset` on.
  void read(const TensorEntry& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  /// Offset of the tensor in the file.
  [[nodiscard]] std::uint64_t offset_of(const TensorEntry& tensor) const;
  /// Open while this object or a copy exists.
  [[nodiscard]] int descriptor() const;
  /// Fails with kCorrupt if the file was written or resized since open(). A file that takes its path
  /// does not matter. A write of the same size within a tick of the file system's clock is not found.
  void check_unchanged() const;

  enum class Checksums : std::uint8_t {
    kNone,
    kStale,  ///< the header has changed since they were written
    kValid
  };
  [[nodiscard]] Checksums checksums() const;

 private:
  friend class TensorCheck;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Compares the bytes of one tensor, read in pieces, with the file's checksum if that is valid.
/// Several threads may add pieces concurrently.
class TensorCheck {
 public:
  /// Piece size in bytes of the file. A piece begins at a multiple of it.
  static constexpr std::uint64_t kPiece = 16ull << 20;

  TensorCheck(const SafetensorsFile& file, const TensorEntry& tensor);
  /// Adds a whole piece of kPiece bytes, or the tensor's last piece.
  void add(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Call after all pieces. kCorrupt if the bytes differ from what was written.
  void finish() const;

 private:
  const SafetensorsFile* file_;
  const TensorEntry* tensor_;
  std::vector<std::uint64_t> pieces_;  ///< empty: nothing is compared
};

/// Whether a file is on disk when commit returns.
enum class Sync : std::uint8_t {
  kOnCommit,
  kByCaller,  ///< the caller syncs the whole folder before moving it into place
};

/// Writes one file in pieces, in any order. Bytes go to a temporary file next to it, and commit
/// renames that file. Readers see either the old file or the new one. Without a commit, or after a
/// failure, the temporary file is removed and the old file is unchanged. Space is reserved first if
/// the file system supports it, so a full disk fails before the first byte. Checksums cost only
/// their computation if pieces are those of TensorCheck. commit reads other pieces again.
///
/// Several processes of one machine may write one file. One makes it and the others join it. All
/// report their writes to it before it commits.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                    Sync sync = Sync::kOnCommit);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Writes bytes of the tensor with index `tensor` from `offset` on. Every byte is written once.
  /// Several threads may write concurrently.
  void write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Fails if bytes of a tensor are missing.
  void commit();

  // ---- together with other processes ----
  /// Name of the file while it is written, for join().
  [[nodiscard]] std::string shared_name() const;
  /// Opens the same file, with the same tensors and metadata. None if this process does not see the
  /// file, or not through the page cache of the process that made it, as on another machine.
  [[nodiscard]] static std::optional<SafetensorsWriter> join(
      const std::string& shared_name, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata);
  /// Record of a process's writes.
  struct Written {
    struct Hash {
      std::size_t tensor = 0, piece = 0;
      std::uint64_t value = 0;
    };
    std::vector<std::uint64_t> bytes;  ///< one per tensor
    std::vector<Hash> hashes;          ///< of whole pieces
  };
  /// This process's writes since the last call.
  [[nodiscard]] Written take_written();
  void add(const Written& of_another);
  /// Reads and hashes pieces that are complete and not hashed yet. This call handles the pieces
  /// with number `turn` of every `turns`.
  void hash_rest(std::size_t turn, std::size_t turns);
  /// Replaces commit in a process that joined. Reports failures that the file system shows only
  /// now.
  void leave();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  void write_checksums();
  std::unique_ptr<State> state_;
};

/// Assigns tensors to files.
struct TensorFiles {
  struct File {
    std::filesystem::path path;
    std::vector<TensorInfo> tensors;
  };
  struct Place {
    std::size_t file = 0, tensor = 0;
  };
  std::vector<File> files;
  std::vector<Place> places;  ///< one per tensor
};
[[nodiscard]] TensorFiles one_file(std::filesystem::path path, std::vector<TensorInfo> tensors);
/// Files of a model's folder: "model.safetensors" if everything fits in one shard. Otherwise
/// "model-00001-of-0000N.safetensors" with "model.safetensors.index.json".
[[nodiscard]] TensorFiles model_files(const std::filesystem::path& folder,
                                      const std::vector<TensorInfo>& tensors, Bytes max_shard);
/// Call after all files are written. Writes the index, then removes files of an earlier save with
/// other names.
void finish_model_files(const TensorFiles& files);

/// Writes the files of a model's folder; used like SafetensorsWriter.
class ShardedWriter {
 public:
  ShardedWriter(const std::filesystem::path& folder, const std::vector<TensorInfo>& tensors,
                Bytes max_shard, Sync sync = Sync::kOnCommit);
  void write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  TensorFiles files_;
  std::vector<SafetensorsWriter> shards_;
};

/// All the tensors of a model's folder: one file, or an index and its shards.
class WeightFolder {
 public:
  struct Found {
    const SafetensorsFile* file = nullptr;  ///< null: the folder lacks the name
    const TensorEntry* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };
  using OpenFile = std::function<SafetensorsFile(const std::filesystem::path&)>;
  [[nodiscard]] static WeightFolder open(const std::filesystem::path& folder,
                                         const OpenFile& open_file = SafetensorsFile::open);
  [[nodiscard]] Found find(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The index, if there is one.
  [[nodiscard]] std::optional<std::filesystem::path> index() const;
  /// The files of the tensors.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

}  // namespace neap::weights
