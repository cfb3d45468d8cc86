// What libtorch 2.11's CUDA kernels take from its allocator in addition to their results, as its
// source and cuDNN's frontend compute it. tests/gpu/model compares with the allocator's own trace.
//
// Threads   functions without state.
#pragma once

#include <cstdint>

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
/// Sums over the rows of a contiguous (rows, columns), in float32 (float64 for float64).
[[nodiscard]] ReductionScratch column_sum_scratch(std::int64_t rows, std::int64_t columns,
                                                  Dtype dtype, const CudaDevice& device);

/// B sequences of T tokens, H heads of D.
struct AttentionSizes {
  std::int64_t sequences = 0, length = 0, heads = 0, key_heads = 0, width = 0;
};
/// FlashAttention's backward: lengths and widths are rounded up to its tiles.
struct FlashScratch {
  std::int64_t row_sums = 0;     ///< float32 elements: of dO * O
  std::int64_t accumulator = 0;  ///< float32 elements: of dQ
  std::int64_t key_heads = 0;    ///< elements of dK, and of dV, for every query head; 0: none
};
/// `deterministic`: an accumulator for each share of the work.
[[nodiscard]] FlashScratch flash_backward_scratch(const AttentionSizes& sizes, bool deterministic,
                                                  const CudaDevice& device);
/// cuDNN's backward: one workspace, in bytes.
[[nodiscard]] std::int64_t cudnn_backward_workspace(const AttentionSizes& sizes, Dtype dtype);

}  // namespace neap::step
