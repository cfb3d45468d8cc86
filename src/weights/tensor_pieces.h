// Pieces of tensors that are read from or written to files: 16 MiB in the file's dtype, handled by
// several threads.
//
// Threads   for_each_piece starts them; buffers belong to one thread.
//
// Failure   neap::Error for dtypes that are not converted.
//
// Cost      host memory: at most two buffers of a piece per thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weights/safetensors.h"

namespace neap::weights {

/// Bytes of a piece in the file.
constexpr std::uint64_t kPieceBytes = TensorCheck::kPiece;

/// A buffer that grows to the largest piece.
class PieceBuffer {
 public:
  std::byte* of(std::uint64_t bytes) {
    if (bytes > size_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return bytes_.get();
  }
  void release() {
    bytes_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t size_ = 0;
};

[[nodiscard]] inline std::uint64_t width_of(at::ScalarType type) {
  return c10::elementSize(type);
}
[[nodiscard]] at::Tensor host_view(std::byte* bytes, std::uint64_t count, at::ScalarType type);

/// Elements [first, first + count) of a flat tensor of any dtype, copied from and to host memory.
class PieceValues {
 public:
  PieceValues(const at::Tensor& flat, std::uint64_t first, std::uint64_t count);

  /// Memory for values of `type`: the tensor's own if store() then need not copy, else the buffer.
  std::byte* place(at::ScalarType type, PieceBuffer& buffer) const;
  void store(const std::byte* from, at::ScalarType type, PieceBuffer& converted) const;
  /// The values as `type`, in the tensor itself or in a buffer.
  const std::byte* load(at::ScalarType type, PieceBuffer& copied, PieceBuffer& converted) const;

 private:
  [[nodiscard]] bool direct(at::ScalarType type) const {
    return piece_.is_cpu() && type == piece_.scalar_type();
  }
  [[nodiscard]] std::byte* host() const { return static_cast<std::byte*>(piece_.data_ptr()); }

  at::Tensor piece_;
  std::uint64_t count_;
};

/// A piece of one of several tensors.
struct TensorPiece {
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;  ///< range of elements
};
/// Appends the pieces of a tensor whose elements take `width` bytes in the file.
void cut_pieces(std::size_t tensor, std::uint64_t elements, std::uint64_t width,
                std::vector<TensorPiece>& pieces);

/// The number of threads that libtorch uses.
[[nodiscard]] std::size_t all_threads();
/// Calls visit(piece, buffer, buffer) for the pieces of `tensors` with this number of threads. GPU
/// work of these threads goes to the caller's stream.
void for_each_piece(
    const std::vector<at::Tensor>& tensors, const std::vector<TensorPiece>& pieces,
    std::size_t threads,
    const std::function<void(const TensorPiece&, PieceBuffer&, PieceBuffer&)>& visit);

}  // namespace neap::weights
