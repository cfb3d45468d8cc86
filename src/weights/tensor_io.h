// Tensors in and out of files: pieces of 16 MiB, by as many threads as libtorch has.
//
// Tensors   contiguous, on any device. Between a file's and a tensor's floating dtype values are
//           rounded to the nearest; other dtypes must be equal.
// Failure   neap::Error naming the file and the tensor.
// Cost      host memory: 32 MiB a thread at most. A tensor in host memory of the file's dtype is
//           read straight into place.
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

/// The format's name of a dtype; fails for one that it cannot hold.
[[nodiscard]] const char* dtype_name(at::ScalarType type);

/// Fails unless the tensor of a file has this shape and a dtype that is read as `wanted`.
void check_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::IntArrayRef shape,
                  at::ScalarType wanted);

struct TensorRead {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;
  at::Tensor target;  ///< of the entry's shape
};
/// Fills every target. Dtypes and shapes are checked before the first is touched, checksums while they
/// are read.
void read_tensors(const std::vector<TensorRead>& reads);

/// As SafetensorsWriter::write; called by several threads.
using PieceSink =
    std::function<void(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes)>;
struct TensorWrite {
  std::size_t number = 0;  ///< for the sink
  at::Tensor tensor;
  at::ScalarType dtype = at::kFloat;  ///< in the file
};
/// Hands over every tensor's bytes, in pieces that begin at multiples of TensorCheck::kPiece bytes of it.
void write_tensors(const std::vector<TensorWrite>& writes, const PieceSink& sink);
/// The same by the caller's thread alone, in order.
void write_tensors_in_order(const std::vector<TensorWrite>& writes, const PieceSink& sink);

/// Calls fill(piece number, float values) for every piece of `elements` values and stores them in
/// `target`; several threads at once. Pieces have 4 Mi values but for the last.
void fill_tensor(const at::Tensor& target,
                 const std::function<void(std::uint64_t piece, std::span<float> values)>& fill);

/// A file's tensor in host memory, as float32.
[[nodiscard]] at::Tensor read_float(const SafetensorsFile& file, const TensorEntry& entry);

/// The tensor of that name; an error where the file has none.
[[nodiscard]] const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name);

/// Tensors by name (optimizer states, counters).
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// One file of named tensors, written some at a time.
class TensorFileWriter {
 public:
  /// Tensors are not read yet.
  TensorFileWriter(std::filesystem::path path, NamedTensors tensors,
                   const std::map<std::string, std::string>& metadata = {},
                   Sync sync = Sync::kOnCommit);
  /// `count` tensors from `first` on, in the order given.
  void write(std::size_t first, std::size_t count);
  void commit() { file_.commit(); }

 private:
  NamedTensors tensors_;
  SafetensorsWriter file_;
};
/// All of them at once.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {},
                  Sync sync = Sync::kOnCommit);

/// Fills `tensors` by name; a file's shape and dtype must be the tensor's.
void load_tensors(const SafetensorsFile& file, const NamedTensors& tensors);

/// A part of a flat tensor of a file.
struct NamedSlice {
  std::string name;
  std::int64_t elements = 0;  ///< of the whole tensor
  std::int64_t first = 0;     ///< that `target` begins with
  at::Tensor target;          ///< (count,)
};
/// As load_tensors. Tensors are read whole, for their checksums, through a buffer.
void load_slices(const SafetensorsFile& file, const std::vector<NamedSlice>& slices);

}  // namespace neap::weights
