// What moves tensors in and out of files has of them at once: pieces of 16 MiB, by several threads, in the file's dtype.
//
// Threads   for_each_piece starts them; buffers are one thread's.
// Failure   neap::Error for dtypes that are not converted.
// Cost      host memory: two buffers of a piece a thread at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weights/safetensors.h"

namespace neap::weights {

/// Of a file's bytes.
constexpr std::uint64_t kPieceBytes = TensorCheck::kPiece;

/// Memory that grows to the largest piece.
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

/// Elements [first, first + count) of a flat tensor, in some dtype, in and out of host memory.
class PieceValues {
 public:
  PieceValues(const at::Tensor& flat, std::uint64_t first, std::uint64_t count);

  /// Where values of `type` may be put so that store() need not copy them; else the buffer.
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

/// Of one of several tensors.
struct TensorPiece {
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;  ///< elements
};
/// Those of a tensor whose elements take `width` bytes in the file.
void cut_pieces(std::size_t tensor, std::uint64_t elements, std::uint64_t width,
                std::vector<TensorPiece>& pieces);

/// As many threads as libtorch has.
[[nodiscard]] std::size_t all_threads();
/// visit(piece, buffer, buffer) of pieces of `tensors`, by so many threads. What they give a GPU is given to the caller's
/// stream of it.
void for_each_piece(
    const std::vector<at::Tensor>& tensors, const std::vector<TensorPiece>& pieces,
    std::size_t threads,
    const std::function<void(const TensorPiece&, PieceBuffer&, PieceBuffer&)>& visit);

}  // namespace neap::weights
