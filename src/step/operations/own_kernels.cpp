#include "step/operations/own_kernels.h"

#include <algorithm>

namespace neap::step {

using namespace kernels::decoding;

namespace {

std::int64_t waves(std::int64_t blocks, std::int64_t at_once) {
  return (blocks + at_once - 1) / at_once;
}

// Whether the warps of few_rows.cu and normed_rows.cu read so few columns in whole rounds.
bool in_rounds(std::int64_t columns) {
  return columns % kRoundColumns == 0 && columns <= kMostNormed;
}
constexpr std::int64_t kNarrow = 1024;  // columns

}  // namespace

// Times of each on an H200, alone (bench/results/row-products-h200.jsonl) and in a step's graph
// (decode-parts-h200.jsonl, decode-normed-h200.jsonl). Products read their matrices once, so their
// size counts: few_rows.cu starts fastest, and some_rows.cu reads fastest. With more rows or
// matrices the library is faster. Where they alternate, both are slower: some_rows.cu reads so much
// of its matrices before the previous kernel has ended that the loads of that kernel wait. So all
// matrices of a layer but small ones have the same kernel, by the model's width. Rows of adapters
// that are multiplied together with a matrix do not count. few_rows.cu reads 2048 columns at once,
// and is slower with other widths. Together with normed_rows.cu, which also computes the norms, it
// is faster with fewer columns too, if rounds are whole.
RowProduct OwnKernels::row_product(spec::Dtype dtype, std::int64_t rows, std::int64_t in,
                                   std::int64_t out) const {
  constexpr std::int64_t kSmall = 4 << 20, kMedium = 9 << 19, kLarge = 54 << 20;  // elements
  constexpr std::int64_t kWhole = 2048, kWide = 3072;
  constexpr std::int64_t kHead = 42 << 10;  // rows of a matrix; heads have more, other ones fewer
  constexpr std::int64_t kLong = 4, kMost = std::int64_t{kMostTiles} * kTile;
  if (!on || dtype != spec::Dtype::kBfloat16 || in % kOfLane != 0 || out % kTile != 0)
    return RowProduct::kLibrary;
  if (out >= kHead)
    return warp_groups && rows <= std::int64_t{2} * kTile ? RowProduct::kSomeRows
                                                          : RowProduct::kLibrary;
  if (!warp_groups) return rows <= kTile ? RowProduct::kFewRows : RowProduct::kLibrary;
  const std::int64_t elements = in * out;
  const std::int64_t width = std::min(in, out);
  const bool few = elements < kSmall || width <= kNarrow + kMostRank || in_rounds(width) ||
                   (width >= kWhole && width <= kWhole + kMostRank) ||
                   (rows <= kTile / 2 && width >= kWide);
  if (rows <= kTile && few) return RowProduct::kFewRows;
  const bool medium = rows <= std::int64_t{6} * kTile, wide = out >= kLong * in,
             deep = in >= kLong * out;
  const bool fits = elements <= (medium || wide || deep ? kLarge : kMedium);
  return rows <= kMost && (fits || (medium && wide)) ? RowProduct::kSomeRows : RowProduct::kLibrary;
}

bool OwnKernels::normalizes(spec::Dtype dtype, std::int64_t rows, std::int64_t in,
                            std::int64_t out) const {
  return warp_groups && (in <= kNarrow || in_rounds(in)) &&
         row_product(dtype, rows, in, out) == RowProduct::kFewRows;
}

// Measured with 2^35 multiplications and more (bench/results/training-products-h200.jsonl). Layers of
// at most 64 rows have fewer than the least number. They may be faster with the depth divided.
bool OwnKernels::tunes(spec::Dtype dtype, std::int64_t rows, std::int64_t depth,
                       std::int64_t columns) const {
  constexpr std::int64_t kLeast = std::int64_t{1} << 33;
  return on && warp_groups && dtype == spec::Dtype::kBfloat16 && rows * depth * columns >= kLeast;
}

RowsGrid OwnKernels::rows_grid(std::int64_t in, std::int64_t out) const {
  constexpr std::int64_t kLeastColumns = 200, kManyColumns = 1024, kMostCluster = 8;  // of a block
  const std::int64_t tiles = (out + kRowsOfBlock - 1) / kRowsOfBlock;
  // Large clusters cannot take every multiprocessor.
  const auto room = [&](std::int64_t cluster, std::int64_t blocks) {
    return multiprocessors * blocks * (cluster > 2 ? 9 : 10) / 10;
  };
  const auto fits = [&](std::int64_t cluster) {
    const std::int64_t blocks = 2 * in > cluster * kManyColumns ? 3 : 2;
    return cluster <= std::min(kMostCluster, multiprocessors) && cluster * kLeastColumns <= in &&
           cluster * tiles <= room(cluster, blocks);
  };
  RowsGrid grid;
  while (fits(2 * grid.cluster)) grid.cluster *= 2;
  const std::int64_t blocks = grid.cluster * tiles;
  const auto taken = [&](std::int64_t n) { return n * waves(blocks, room(grid.cluster, n)); };
  if (blocks > room(grid.cluster, 2) && 5 * taken(3) <= 6 * taken(2)) grid.blocks = 3;
  return grid;
}

}  // namespace neap::step
