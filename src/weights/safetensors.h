// Safetensors files: reading with every check of the format, writing that survives a crash.
//
// Files that Neap writes have a checksum of the header and of each tensor in their metadata, which
// other readers ignore. A program that rewrites such a file makes them stale, and they are ignored.
//
// Needs no torch. Bytes are read with pread, not mapped: a file cut short while it is open becomes
// an error, not a SIGBUS.
//
// Threads   readers and writers may be used by several threads at once.
// Failure   neap::Error naming the file and the tensor.
// Cost      opening reads the header only; reading copies once, straight to the caller's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/dtype.h"

namespace neap::weights {

/// Bits of one element by the format's name ("BF16", "F32", ...); 0 for a name it does not have.
[[nodiscard]] int bits_of_dtype(std::string_view dtype);
/// Its names of the types that models compute with.
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

/// A tensor without its bytes.
struct TensorInfo {
  std::string name;
  std::string dtype;  ///< the format's: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  bool weights = false;  ///< of a model: writing values that are not finite is an error
};

/// A tensor of a file.
struct TensorEntry : TensorInfo {
  std::uint64_t begin = 0, end = 0;  ///< within the file's data
  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

class SafetensorsFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

  /// Reads and checks the header: its size, JSON without repeated keys, known dtypes, shapes whose
  /// product neither overflows nor disagrees with the offsets, data without holes or overlaps that
  /// ends where the file ends.
  [[nodiscard]] static SafetensorsFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const;
  /// In the order of their data.
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const;
  /// Without the checksums.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  /// Null when there is none of that name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// Fills `out` with the tensor's bytes from `offset` on.
  void read(const TensorEntry& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  /// Where the tensor begins in the file.
  [[nodiscard]] std::uint64_t offset_of(const TensorEntry& tensor) const;
  /// Open while this or a copy lives.
  [[nodiscard]] int descriptor() const;

  enum class Checksums : std::uint8_t {
    kNone,
    kStale,  ///< the header is not the one that they were written with
    kValid
  };
  [[nodiscard]] Checksums checksums() const;

 private:
  friend class TensorCheck;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Compares the bytes of one tensor, read piece by piece, with the file's checksum if that is valid.
/// Several threads may add pieces at a time.
class TensorCheck {
 public:
  /// Of the file; a piece begins at a multiple of it.
  static constexpr std::uint64_t kPiece = 16ull << 20;

  TensorCheck(const SafetensorsFile& file, const TensorEntry& tensor);
  /// A whole piece of kPiece bytes, or the tensor's last.
  void add(std::uint64_t offset, std::span<const std::byte> bytes);
  /// After all pieces: kCorrupt where they are not what was written.
  void finish() const;

 private:
  const SafetensorsFile* file_;
  const TensorEntry* tensor_;
  std::vector<std::uint64_t> pieces_;  ///< empty: nothing is compared
};

/// Whether a finished file is on the disk when commit returns.
enum class Sync : std::uint8_t {
  kOnCommit,
  kByCaller,  ///< who moves the whole folder into place syncs it first
};

/// One file, written in pieces and in any order: a temporary neighbour, which commit puts in place.
/// Readers see the old file or the new one. Without a commit, after a failure too, the neighbour is
/// removed and the old file is untouched. The space is reserved first where the file system can do
/// so: a full disk fails before the first byte. Checksums cost nothing but their computation where
/// pieces are those of TensorCheck; pieces that were written otherwise are read again by commit.
///
/// Several processes of one machine may write one file: one makes it, the others join it, and all tell it what
/// they have written before it commits.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                    Sync sync = Sync::kOnCommit);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Bytes of the `tensor`-th of those given, from `offset` on; every byte is written once. Several
  /// threads may write at a time.
  void write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Fails when a tensor lacks bytes.
  void commit();

  // ---- together with other processes ----
  /// For join(): names the file while it is written.
  [[nodiscard]] std::string shared_name() const;
  /// The same file, made with the same tensors and metadata. None: this process does not see it, or not
  /// through the cache of the process that made it, as on another machine.
  [[nodiscard]] static std::optional<SafetensorsWriter> join(
      const std::string& shared_name, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata);
  /// What a process has written.
  struct Written {
    struct Hash {
      std::size_t tensor = 0, piece = 0;
      std::uint64_t value = 0;
    };
    std::vector<std::uint64_t> bytes;  ///< one a tensor
    std::vector<Hash> hashes;          ///< of whole pieces
  };
  /// Of this one since the last call.
  [[nodiscard]] Written take_written();
  void add(const Written& of_another);
  /// Reads pieces that nobody has hashed, which all are there: those with the number `turn` of each `turns`.
  void hash_rest(std::size_t turn, std::size_t turns);
  /// Instead of commit, in a process that joined. What the file system says only now fails.
  void leave();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  void write_checksums();
  std::unique_ptr<State> state_;
};

/// Which tensor is in which of some files.
struct TensorFiles {
  struct File {
    std::filesystem::path path;
    std::vector<TensorInfo> tensors;
  };
  struct Place {
    std::size_t file = 0, tensor = 0;
  };
  std::vector<File> files;
  std::vector<Place> places;  ///< one a tensor
};
[[nodiscard]] TensorFiles one_file(std::filesystem::path path, std::vector<TensorInfo> tensors);
/// A model's folder: "model.safetensors" while everything fits in one shard, else
/// "model-00001-of-0000N.safetensors" with "model.safetensors.index.json".
[[nodiscard]] TensorFiles model_files(const std::filesystem::path& folder,
                                      const std::vector<TensorInfo>& tensors, Bytes max_shard);
/// When its files are there: writes the index, then removes files of an earlier save under other names.
void finish_model_files(const TensorFiles& files);

/// The files of a model's folder, used as SafetensorsWriter.
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
    const SafetensorsFile* file = nullptr;  ///< null: there is none of that name
    const TensorEntry* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };
  [[nodiscard]] static WeightFolder open(const std::filesystem::path& folder);
  [[nodiscard]] Found find(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The index, where there is one, and the files of the tensors.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

}  // namespace neap::weights
