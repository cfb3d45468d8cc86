// Safetensors files: reading with every check of the format, writing that survives a crash.
//
// Needs no torch. Bytes are read with pread, not mapped: a file cut short while it is open becomes
// an error, not a SIGBUS.
//
// Threads   a reader may be used by several threads at once.
// Failure   neap::Error naming the file and the tensor.
// Cost      opening reads the header only; reading copies once, straight to the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace neap::model {

/// Bits of one element by the format's name ("BF16", "F32", ...); 0 for a name it does not have.
[[nodiscard]] int bits_of_dtype(std::string_view dtype);

struct TensorEntry {
  std::string name;
  std::string dtype;  ///< the format's: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
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
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  /// Null when there is none of that name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// Fills `out` with the tensor's bytes from `offset` on.
  void read(const TensorEntry& tensor, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A tensor to write: `produce` is called once and hands its bytes over in order, in any number of
/// pieces, together as many as dtype and shape say.
struct TensorSource {
  using Sink = std::function<void(std::span<const std::byte>)>;
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::function<void(const Sink&)> produce;
};

/// Writes a temporary neighbour, syncs and renames it: readers see the old file or the new one. On
/// any failure (a full disk too) the neighbour is removed and the old file is untouched.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// "model.safetensors" while everything fits in one shard, else "model-00001-of-0000N.safetensors"
/// with "model.safetensors.index.json", which is written last. Files of an earlier save under other
/// names are removed afterwards.
void write_sharded(const std::filesystem::path& folder, std::vector<TensorSource> tensors,
                   Bytes max_shard);

/// All the tensors of a model's folder: one file, or an index and its shards.
class WeightFolder {
 public:
  struct Found {
    const SafetensorsFile* file = nullptr;  ///< null: there is none of that name
    const TensorEntry* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };
  [[nodiscard]] static WeightFolder open(const std::filesystem::path& folder);
  [[nodiscard]] static bool exists(const std::filesystem::path& folder);
  [[nodiscard]] Found find(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

}  // namespace neap::model
