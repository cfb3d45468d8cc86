#include "step/counting/cuda_scratch.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace neap::step {
namespace {

std::int64_t round_up(std::int64_t a, std::int64_t to) {
  return div_up(a, to) * to;
}
constexpr std::int64_t kThreads = 512, kWarp = 32;  // of a summing block
constexpr std::int64_t kCudnnUnit = 128;            // gradients per query head are padded to this
constexpr std::int64_t kSortUnit = 256;             // a sort's temporary storage is padded to this

constexpr std::int64_t kBitsAPass = 8;

// Counters of a radix sort of n pairs: a histogram of 64-bit counts per pass, one of 32-bit counts
// per tile, and those of the passes.
std::int64_t radix_sort_counters(std::int64_t n, std::int64_t tile, std::int64_t passes) {
  constexpr std::int64_t kBins = 1 << kBitsAPass;
  return kBins * (8 * passes + 4 * div_up(n, tile)) + 2 * kSortUnit - 1;
}

// The number of blocks that share a sum, each with a partial result, if a thread would otherwise
// add `values`.
std::int64_t blocks_of_a_sum(std::int64_t values, std::int64_t grid, std::int64_t threads,
                             const CudaDevice& device) {
  constexpr std::int64_t kMinValues = 16, kMaxValues = 256;
  const std::int64_t most = device.multiprocessors * (device.threads_per_multiprocessor / threads);
  if (values < kMaxValues || grid > most) return 1;
  return std::max(std::min(div_up(most, grid), div_up(values, kMinValues)),
                  div_up(values, kMaxValues));
}

std::int64_t largest_power_of_two(std::int64_t n) {
  std::int64_t p = 1;
  while (2 * p <= n) p *= 2;
  return p;
}

}  // namespace

// libtorch's ReduceConfig for a sum over the slower of two dimensions. Neighbouring threads take
// neighbouring columns; other threads of a block, and other blocks, share the rows.
ReductionScratch column_sum_scratch(std::int64_t rows, std::int64_t columns, Dtype dtype,
                                    const CudaDevice& device) {
  constexpr std::int64_t kMaxValues = 256;
  std::int64_t vector = 4;  // columns per load
  while (columns % vector != 0) vector /= 2;
  const std::int64_t threads = kThreads / vector;
  const std::int64_t x = std::min(threads, largest_power_of_two(columns / vector));
  const std::int64_t y = std::min(threads, largest_power_of_two(rows));
  const std::int64_t height = std::min(y, threads / std::min(x, kWarp));
  const std::int64_t width = std::min(x, threads / height);
  if (rows < std::min(height * 16, kMaxValues)) return {};  // no two threads share a column
  const std::int64_t values = div_up(rows, height);
  const std::int64_t grid = div_up(columns / vector, width);
  const std::int64_t blocks = blocks_of_a_sum(values, grid, width * height, device);
  if (blocks <= 1) return {};
  return {element_bytes(wide(dtype)) * columns * blocks * width * vector, 4 * grid};
}

// The same for a sum over the faster dimension: a block's threads take neighbouring columns.
ReductionScratch row_sum_scratch(std::int64_t rows, std::int64_t columns,
                                 const CudaDevice& device) {
  constexpr std::int64_t kVector = 4, kEnough = 16;
  const std::int64_t loads = rows == 1 && columns > 128 ? columns / kVector : columns;
  const std::int64_t x = std::min(kThreads, largest_power_of_two(loads));
  const std::int64_t y = std::min(kThreads, largest_power_of_two(rows));
  const std::int64_t height = std::min(y, kThreads / std::min(x, kWarp));
  const std::int64_t width = std::min(x, kThreads / height);
  if (div_up(columns, width) < height * kEnough) return {};  // each row has its own threads
  const std::int64_t values = div_up(columns, width * height);
  const std::int64_t blocks = blocks_of_a_sum(values, rows, width * height, device);
  if (blocks <= 1) return {};
  return {4 * rows * blocks, 4 * rows};
}

// FlashAttention's heuristic: the fewest shares whose last wave of blocks is nearly full.
FlashSplits flash_forward_splits(const AttentionSizes& s, const CudaDevice& device) {
  constexpr std::int64_t kMost = 128, kQueries = 64;
  constexpr double kFull = 0.8, kNearlyBest = 0.85;
  const std::int64_t keys = s.width <= 64 ? 256 : s.width <= 128 ? 128 : 64;  // of a block
  const std::int64_t key_blocks = div_up(s.keys > 0 ? s.keys : s.length, keys);
  const std::int64_t blocks = s.sequences * s.heads * div_up(s.length, kQueries);
  const std::int64_t slots = 2 * device.multiprocessors;
  if (static_cast<double>(blocks) >= kFull * static_cast<double>(slots)) return {};
  const std::int64_t most = std::min({kMost, slots, key_blocks});
  const auto differs = [&](std::int64_t n) {  // from that with one share fewer
    return n == 1 || div_up(key_blocks, n) != div_up(key_blocks, n - 1);
  };
  const auto efficiency = [&](std::int64_t n) {
    const double waves = static_cast<double>(blocks * n) / static_cast<double>(slots);
    return waves / std::ceil(waves);
  };
  double best = 0;
  for (std::int64_t n = 1; n <= most; ++n)
    if (differs(n)) best = std::max(best, efficiency(n));
  std::int64_t splits = 1;
  while (splits < most && !(differs(splits) && efficiency(splits) >= kNearlyBest * best)) ++splits;
  if (splits == 1) return {};
  const std::int64_t rows = splits * s.sequences * s.heads * s.length;
  return {rows, rows * (s.width <= 192 ? round_up(s.width, 32) : 256)};
}

FlashScratch flash_backward_scratch(const AttentionSizes& s, bool deterministic,
                                    const CudaDevice& device) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t rows = s.packed_rows > 0 ? s.packed_rows + kTile * s.sequences
                                              : s.sequences * round_up(s.length, kTile);
  const std::int64_t width = round_up(s.width, s.width <= 128 ? 32 : 64);
  const std::int64_t splits =
      deterministic ? div_up(device.multiprocessors, s.sequences * s.heads) : 1;
  FlashScratch out;
  out.row_sums = s.heads * rows;
  out.accumulator = splits * rows * s.heads * width;
  if (s.key_heads != s.heads) out.key_heads = s.key_rows() * s.heads * s.width;
  return out;
}

std::vector<std::int64_t> sequences_of_more_scratch(const AttentionSizes& sizes,
                                                    std::int64_t longest, std::int64_t of_row,
                                                    const CudaDevice& device) {
  std::vector<std::int64_t> found;
  std::int64_t most = 0;
  for (std::int64_t n = sizes.sequences; n > 0; n -= of_row) {
    AttentionSizes s = sizes;
    s.sequences = n;
    s.packed_rows = std::min(sizes.packed_rows, n * longest);
    const FlashScratch scratch = flash_backward_scratch(s, /*deterministic=*/true, device);
    if (scratch.accumulator + scratch.row_sums <= most) continue;
    most = scratch.accumulator + scratch.row_sums;
    if (n != sizes.sequences) found.push_back(n);
  }
  return found;
}

std::int64_t cudnn_backward_workspace(const AttentionSizes& s, Dtype dtype) {
  const std::int64_t rows = s.sequences * s.heads * s.length;
  // dQ and the row sums of dO * O in float32. With grouped keys, each query head first gets a
  // gradient of its own.
  const std::int64_t grouped =
      s.key_heads != s.heads ? 2 * round_up(rows * s.width * element_bytes(dtype), kCudnnUnit) : 0;
  return kCudnnWorkspace + 4 * rows * s.width + 4 * rows + grouped;
}

std::int64_t efficient_backward_workspace(const AttentionSizes& s) {
  constexpr std::int64_t kColumns = 64, kLocks = 16;
  const std::int64_t rows = s.width <= 64 ? 64 : 128;  // of a tile
  const std::int64_t tiles = div_up(s.length, rows) * div_up(s.width, kColumns);
  return s.sequences * s.heads * tiles * (kLocks + rows * kColumns * 4);
}

std::int64_t pair_sort_scratch(std::int64_t n, std::int64_t limit) {
  constexpr std::int64_t kOneBlock = 2304, kTile = 4608;
  if (n <= kOneBlock) return 1;
  const std::int64_t passes = div_up(
      static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(limit - 1))), kBitsAPass);
  // A second copy of keys and values, if there are several passes.
  return radix_sort_counters(n, kTile, passes) + (passes > 1 ? 2 * round_up(8 * n, kSortUnit) : 0);
}

RowSortScratch row_sort_scratch(std::int64_t rows, std::int64_t n) {
  constexpr std::int64_t kSmall = 4096, kFewRows = 128;
  if (n <= kSmall) return {.places = 8 * n};
  const std::int64_t all = rows * n;
  const std::int64_t copies = round_up(4 * all, kSortUnit) + round_up(8 * all, kSortUnit);
  if (rows >= kFewRows) return {.places = 8 * all, .temporary = copies + kSortUnit - 1};
  RowSortScratch out;
  out.places = 8 * all;
  out.temporary = copies + radix_sort_counters(all, 5376, 4);
  if (rows == 1) return out;
  // With few rows, all are sorted together by value, then by row.
  out.pairs = 8 * all;
  out.keys = 4 * all;
  out.second = radix_sort_counters(all, 5760, 1);
  return out;
}

}  // namespace neap::step
