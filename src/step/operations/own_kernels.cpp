#include "step/operations/own_kernels.h"

namespace neap::step {

using namespace kernels::decoding;

// Times of each on an H200 (bench/results/row-products-h200.jsonl). Products read their matrices once, so what counts is their
// size: few_rows.cu starts fastest, some_rows.cu reads x less often, and the library reads large matrices fastest.
RowProduct OwnKernels::row_product(spec::Dtype dtype, std::int64_t rows, std::int64_t in,
                                   std::int64_t out) const {
  constexpr std::int64_t kMostRows = 2 * kTile;  // of some_rows.cu
  constexpr std::int64_t kFewest = kTile / 2;    // rows that few_rows.cu multiplies by all matrices
  constexpr std::int64_t kSmall = 9 << 20, kSmallOfMoreRows = 11 << 20, kMedium = 54 << 20;
  if (!on || dtype != spec::Dtype::kBfloat16 || in % kOfLane != 0 || out % kTile != 0)
    return RowProduct::kLibrary;
  if (!clusters) return rows <= kTile ? RowProduct::kFewRows : RowProduct::kLibrary;
  const std::int64_t elements = in * out;
  if (rows <= kFewest || (rows <= kTile && elements <= kSmall)) return RowProduct::kFewRows;
  const std::int64_t most = rows <= kTile ? kMedium : rows <= kMostRows ? kSmallOfMoreRows : 0;
  return elements <= most ? RowProduct::kSomeRows : RowProduct::kLibrary;
}

std::int64_t blocks_of_columns(std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kBlocks = 330, kLeastColumns = 192, kMost = 8;
  const std::int64_t tiles = (out + kRowsOfBlock - 1) / kRowsOfBlock;
  std::int64_t blocks = 1;
  while (blocks < kMost && 2 * blocks * tiles <= kBlocks && 2 * blocks * kLeastColumns <= in)
    blocks *= 2;
  return blocks;
}

}  // namespace neap::step
