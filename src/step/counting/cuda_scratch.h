// Memory that libtorch 2.11's CUDA kernels allocate in addition to their results, computed as in
// its source and in cuDNN's frontend. tests/gpu/model compares it with the allocator's trace.
//
// Threads   stateless functions.
#pragma once

#include <cstdint>
#include <vector>

#include "step/operations/shape.h"

namespace neap::step {

struct CudaDevice {
  std::int64_t multiprocessors = 132;  ///< the default is that of H100 and H200
  std::int64_t threads_per_multiprocessor = 2048;
};

/// Two buffers of a reduction whose inputs are divided among blocks; zero: not used.
struct ReductionScratch {
  std::int64_t partial_bytes = 0;
  std::int64_t semaphore_bytes = 0;
};
/// Sums or maxima over the rows of a contiguous (rows, columns), in float32 (float64 for float64).
[[nodiscard]] ReductionScratch column_sum_scratch(std::int64_t rows, std::int64_t columns,
                                                  Dtype dtype, const CudaDevice& device);

/// Sums over the columns of a contiguous (rows, columns), in float32. With one row, over all
/// elements.
[[nodiscard]] ReductionScratch row_sum_scratch(std::int64_t rows, std::int64_t columns,
                                               const CudaDevice& device);

/// B sequences of T tokens, H heads of size D. Packed sequences have `packed_rows` instead of a
/// common length.
struct AttentionSizes {
  std::int64_t sequences = 0, length = 0, heads = 0, key_heads = 0, width = 0;
  std::int64_t packed_rows = 0;
  std::int64_t keys = 0;         ///< per sequence; 0: same as its rows
  std::int64_t packed_keys = 0;  ///< of all packed sequences; 0: same as their rows
  [[nodiscard]] std::int64_t rows() const {
    return packed_rows > 0 ? packed_rows : sequences * length;
  }
  [[nodiscard]] std::int64_t key_rows() const {
    if (packed_keys > 0) return packed_keys;
    return keys > 0 ? sequences * keys : rows();
  }
};
/// FlashAttention's forward: partial results over shares of the keys, if heads and rows alone do
/// not fill the GPU. In float32 elements; 0: none.
struct FlashSplits {
  std::int64_t log_sums = 0;
  std::int64_t outputs = 0;
};
[[nodiscard]] FlashSplits flash_forward_splits(const AttentionSizes& sizes,
                                               const CudaDevice& device);
/// FlashAttention's backward: lengths and widths are rounded up to its tiles, and packed sequences
/// are padded by a tile.
struct FlashScratch {
  std::int64_t row_sums = 0;     ///< float32 elements for dO * O
  std::int64_t accumulator = 0;  ///< float32 elements for dQ
  std::int64_t key_heads = 0;    ///< elements of dK, and of dV, for every query head; 0: none
};
/// `deterministic`: one accumulator for each share of the work.
[[nodiscard]] FlashScratch flash_backward_scratch(const AttentionSizes& sizes, bool deterministic,
                                                  const CudaDevice& device);
/// Numbers of packed sequences for which the deterministic backward needs more scratch memory than
/// for any larger number, without the largest number itself. There are at most `sizes.sequences`
/// sequences, a multiple of `of_row`, with `longest` rows each and `sizes.packed_rows` in total.
/// Fewer sequences may have fewer rows, so each of these numbers must be counted.
[[nodiscard]] std::vector<std::int64_t> sequences_of_more_scratch(const AttentionSizes& sizes,
                                                                  std::int64_t longest,
                                                                  std::int64_t of_row,
                                                                  const CudaDevice& device);
/// cuDNN's forward, in bytes.
constexpr std::int64_t kCudnnWorkspace = 256;
/// cuDNN's backward: one workspace, in bytes.
[[nodiscard]] std::int64_t cudnn_backward_workspace(const AttentionSizes& sizes, Dtype dtype);
/// The memory-efficient kernel's backward in float32: tiles of dQ with their locks, in bytes.
[[nodiscard]] std::int64_t efficient_backward_workspace(const AttentionSizes& sizes);

/// Bytes that sorting n int64 keys below `limit` with int64 values takes in addition to its
/// results.
[[nodiscard]] std::int64_t pair_sort_scratch(std::int64_t n, std::int64_t limit);
/// Bytes that sorting each of `rows` rows of n float32 with their indices takes in addition to its
/// results. `places`, `pairs` and `keys` live until the end; `temporary` and then `second` live
/// meanwhile.
struct RowSortScratch {
  std::int64_t places = 0, pairs = 0, keys = 0, temporary = 0, second = 0;
};
[[nodiscard]] RowSortScratch row_sort_scratch(std::int64_t rows, std::int64_t n);

}  // namespace neap::step
