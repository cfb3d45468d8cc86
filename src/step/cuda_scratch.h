// What libtorch 2.11's CUDA kernels take from its allocator in addition to their results, as its
// source and cuDNN's frontend compute it. tests/gpu/model compares with the allocator's own trace.
//
// Threads   functions without state.
#pragma once

#include <cstdint>
#include <vector>

#include "step/shape.h"

namespace neap::step {

struct CudaDevice {
  std::int64_t multiprocessors = 132;  ///< H100's and H200's
  std::int64_t threads_per_multiprocessor = 2048;
};

/// Two buffers of a reduction whose inputs are spread over blocks; zero: it takes none.
struct ReductionScratch {
  std::int64_t partial_bytes = 0;
  std::int64_t semaphore_bytes = 0;
};
/// Sums (or maxima) over the rows of a contiguous (rows, columns), in float32 (float64 for float64).
[[nodiscard]] ReductionScratch column_sum_scratch(std::int64_t rows, std::int64_t columns,
                                                  Dtype dtype, const CudaDevice& device);

/// Sums over the columns of a contiguous (rows, columns), in float32; one row: over all elements.
[[nodiscard]] ReductionScratch row_sum_scratch(std::int64_t rows, std::int64_t columns,
                                               const CudaDevice& device);

/// B sequences of T tokens, H heads of D. Packed sequences have no common length but `packed_rows`.
struct AttentionSizes {
  std::int64_t sequences = 0, length = 0, heads = 0, key_heads = 0, width = 0;
  std::int64_t packed_rows = 0;
  std::int64_t keys = 0;         ///< of a sequence; 0: as many as its rows
  std::int64_t packed_keys = 0;  ///< of packed sequences in all; 0: as many as their rows
  [[nodiscard]] std::int64_t rows() const {
    return packed_rows > 0 ? packed_rows : sequences * length;
  }
  [[nodiscard]] std::int64_t key_rows() const {
    if (packed_keys > 0) return packed_keys;
    return keys > 0 ? sequences * keys : rows();
  }
};
/// FlashAttention's forward: results of each share of the keys, where heads and rows alone do not
/// fill the card. float32 elements; 0: none.
struct FlashSplits {
  std::int64_t log_sums = 0;
  std::int64_t outputs = 0;
};
[[nodiscard]] FlashSplits flash_forward_splits(const AttentionSizes& sizes,
                                               const CudaDevice& device);
/// FlashAttention's backward: lengths and widths are rounded up to its tiles; packed sequences lie a
/// tile apart.
struct FlashScratch {
  std::int64_t row_sums = 0;     ///< float32 elements: of dO * O
  std::int64_t accumulator = 0;  ///< float32 elements: of dQ
  std::int64_t key_heads = 0;    ///< elements of dK, and of dV, for every query head; 0: none
};
/// `deterministic`: an accumulator for each share of the work.
[[nodiscard]] FlashScratch flash_backward_scratch(const AttentionSizes& sizes, bool deterministic,
                                                  const CudaDevice& device);
/// Of packed sequences at most `sizes.sequences`, a multiple of `of_row`, with `longest` rows each and
/// `sizes.packed_rows` in all: those numbers with which the deterministic backward pass takes more scratch memory than
/// with any larger one, the largest left out. Fewer sequences may have fewer rows, so none of these stands for another.
[[nodiscard]] std::vector<std::int64_t> sequences_of_more_scratch(const AttentionSizes& sizes,
                                                                  std::int64_t longest,
                                                                  std::int64_t of_row,
                                                                  const CudaDevice& device);
/// cuDNN's forward pass, in bytes.
constexpr std::int64_t kCudnnWorkspace = 256;
/// cuDNN's backward: one workspace, in bytes.
[[nodiscard]] std::int64_t cudnn_backward_workspace(const AttentionSizes& sizes, Dtype dtype);
/// The memory-efficient kernel's backward in float32: tiles of dQ with their locks, in bytes.
[[nodiscard]] std::int64_t efficient_backward_workspace(const AttentionSizes& sizes);

/// Bytes that sorting n int64 keys below `limit` with int64 values takes in addition to its results.
[[nodiscard]] std::int64_t pair_sort_scratch(std::int64_t n, std::int64_t limit);
/// What sorting each of `rows` rows of n float32 with their places takes in addition to its results,
/// in bytes: `places`, `pairs` and `keys` until the end, `temporary` and then `second` meanwhile.
struct RowSortScratch {
  std::int64_t places = 0, pairs = 0, keys = 0, temporary = 0, second = 0;
};
[[nodiscard]] RowSortScratch row_sort_scratch(std::int64_t rows, std::int64_t n);

}  // namespace neap::step
