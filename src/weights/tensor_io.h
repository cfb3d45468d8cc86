// Reads and writes tensors in files, in pieces of 16 MiB, with several threads: as many as libtorch
// has, unless the caller says how many.
//
// Tensors   contiguous, on any device. If the floating dtypes of file and tensor differ, values are
//           rounded to the nearest. Other dtypes must be equal.
//
// Failure   neap::Error naming the file and the tensor.
//
// Cost      host memory: at most 32 MiB per thread. A tensor in host memory with the file's dtype
//           is read directly into place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weights/safetensors.h"

namespace neap::weights {

/// The format's name of a dtype. Fails for a dtype that the format lacks.
[[nodiscard]] const char* dtype_name(at::ScalarType type);

/// Fails unless the tensor of a file has this shape and a dtype that can be read as `wanted`.
void check_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::IntArrayRef shape,
                  at::ScalarType wanted);

struct TensorRead {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;
  at::Tensor target;  ///< has the entry's shape
};
/// Fills every target. All dtypes and shapes are checked before the first target is changed.
/// Checksums are checked during reading.
void read_tensors(const std::vector<TensorRead>& reads);

/// Called as SafetensorsWriter::write, by several threads.
using PieceSink =
    std::function<void(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes)>;
struct TensorWrite {
  std::size_t number = 0;  ///< number of the tensor for the sink
  at::Tensor tensor;
  at::ScalarType dtype = at::kFloat;  ///< dtype in the file
};
/// Passes every tensor's bytes to `sink`, in pieces that begin at multiples of TensorCheck::kPiece
/// bytes, with this number of threads. With one, they come in order on the caller's thread.
void write_tensors(const std::vector<TensorWrite>& writes, std::size_t threads,
                   const PieceSink& sink);

/// Calls fill(piece number, float values) for every piece of `elements` values and stores them in
/// `target`. Several threads run concurrently. Pieces have 4 Mi values except the last.
void fill_tensor(const at::Tensor& target,
                 const std::function<void(std::uint64_t piece, std::span<float> values)>& fill);

/// Reads a file's tensor into host memory as float32.
[[nodiscard]] at::Tensor read_float(const SafetensorsFile& file, const TensorEntry& entry);

/// The tensor with that name. Fails if the file lacks it.
[[nodiscard]] const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name);

/// Tensors by name (optimizer states, counters).
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes one file of named tensors, some at a time.
class TensorFileWriter {
 public:
  /// Does not read the tensors yet.
  TensorFileWriter(std::filesystem::path path, NamedTensors tensors,
                   const std::map<std::string, std::string>& metadata = {},
                   Sync sync = Sync::kOnCommit);
  /// Writes `count` tensors from `first` on, in the given order.
  void write(std::size_t first, std::size_t count);
  void commit() { file_.commit(); }

 private:
  NamedTensors tensors_;
  SafetensorsWriter file_;
};
/// Writes all tensors at once.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {},
                  Sync sync = Sync::kOnCommit);

/// Fills `tensors` by name. Shapes and dtypes in the file must be those of the tensors.
void load_tensors(const SafetensorsFile& file, const NamedTensors& tensors);

/// A range of a flat tensor in a file.
struct NamedSlice {
  std::string name;
  std::int64_t elements = 0;  ///< size of the whole tensor
  std::int64_t first = 0;     ///< first element of the range
  at::Tensor target;          ///< shape (count,)
};
/// As load_tensors. Tensors are read as a whole through a buffer, to check their checksums.
void load_slices(const SafetensorsFile& file, const std::vector<NamedSlice>& slices);

}  // namespace neap::weights
