#include "step/cuda_scratch.h"

#include <algorithm>

namespace neap::step {
namespace {

std::int64_t div_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t a, std::int64_t to) {
  return div_up(a, to) * to;
}
std::int64_t largest_power_of_two(std::int64_t n) {
  std::int64_t p = 1;
  while (2 * p <= n) p *= 2;
  return p;
}

}  // namespace

// libtorch's ReduceConfig for a sum over the slower of two dimensions: neighbouring threads take
// neighbouring columns, a block's further threads and further blocks share the rows.
ReductionScratch column_sum_scratch(std::int64_t rows, std::int64_t columns, Dtype dtype,
                                    const CudaDevice& device) {
  constexpr std::int64_t kThreads = 512, kWarp = 32, kMinValues = 16, kMaxValues = 256;
  std::int64_t vector = 4;  // columns a load
  while (columns % vector != 0) vector /= 2;
  const std::int64_t threads = kThreads / vector;
  const std::int64_t x = std::min(threads, largest_power_of_two(columns / vector));
  const std::int64_t y = std::min(threads, largest_power_of_two(rows));
  const std::int64_t height = std::min(y, threads / std::min(x, kWarp));
  const std::int64_t width = std::min(x, threads / height);
  if (rows < std::min(height * 16, kMaxValues)) return {};  // no two threads share a column
  const std::int64_t values = div_up(rows, height);
  const std::int64_t grid = div_up(columns / vector, width);
  const std::int64_t most_blocks =
      device.multiprocessors * (device.threads_per_multiprocessor / (width * height));
  if (values < kMaxValues || grid > most_blocks) return {};
  const std::int64_t blocks = std::max(
      std::min(div_up(most_blocks, grid), div_up(values, kMinValues)), div_up(values, kMaxValues));
  if (blocks <= 1) return {};
  return {element_bytes(wide(dtype)) * columns * blocks * width * vector, 4 * grid};
}

FlashScratch flash_backward_scratch(const AttentionSizes& s, bool deterministic,
                                    const CudaDevice& device) {
  const std::int64_t length = round_up(s.length, 128);
  const std::int64_t width = round_up(s.width, s.width <= 128 ? 32 : 64);
  const std::int64_t splits =
      deterministic ? div_up(device.multiprocessors, s.sequences * s.heads) : 1;
  FlashScratch out;
  out.row_sums = s.sequences * s.heads * length;
  out.accumulator = splits * s.sequences * length * s.heads * width;
  if (s.key_heads != s.heads) out.key_heads = s.sequences * s.length * s.heads * s.width;
  return out;
}

std::int64_t cudnn_backward_workspace(const AttentionSizes& s, Dtype dtype) {
  const std::int64_t rows = s.sequences * s.heads * s.length;
  // dQ and the row sums of dO * O in float32; grouped keys get one gradient a query head first.
  const std::int64_t grouped =
      s.key_heads != s.heads ? 2 * rows * s.width * element_bytes(dtype) : 0;
  return 4 * rows * s.width + 4 * rows + grouped;
}

}  // namespace neap::step
