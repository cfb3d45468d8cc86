// Products of at most eight rows with matrices (out, in), as decoding has them: bound by the time
// to read the matrices. A block has TILES x 8 rows of a matrix, and its warps share the columns.
// Sums have a fixed order, so a row's result does not depend on other rows. Reading of matrices
// begins before the previous kernel has ended.

#include "few_rows.cuh"

/// Multiplies tiles from `tiles` on. A warp has DEPTH steps of matrix loads in flight. `read` is called
/// once the previous kernel has ended.
template <int TILES, int DEPTH, class Read>
__device__ inline void multiply(Sums<TILES>& sums, const Bf16* const (&tiles)[TILES], const Bf16* x,
                                long long stride, int rows, int columns, const Read& read) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = lane / kLanesOfRow;  // of a tile, and of x
  const int first = lane % kLanesOfRow * kOfLane;
  const int steps = (columns + kStep - 1) / kStep;
  const Bf16* from[TILES];
#pragma unroll
  for (int n = 0; n < TILES; ++n)
    from[n] = tiles[n] + static_cast<long long>(row) * columns + first;
  Eight ahead[DEPTH][TILES];
  const auto fetch = [&](Eight(&to)[TILES], int step) {
    const bool inside = step < steps && step * kStep + first < columns;
#pragma unroll
    for (int n = 0; n < TILES; ++n) to[n] = read_once(from[n] + step * kStep, inside);
  };
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) fetch(ahead[d], warp + d * kWarps);
  wait_for_previous();
  read();
  const Bf16* const row_of_x = x + min(row, rows - 1) * stride + first;
  float sum[TILES][4] = {};
  for (int begin = warp; begin < steps; begin += kWarps * DEPTH) {
    Eight of_x[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int step = begin + d * kWarps;
      const bool inside = step < steps && step * kStep + first < columns;
      of_x[d] = inside ? *reinterpret_cast<const Eight*>(row_of_x + step * kStep) : Eight{};
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      Eight w[TILES];
#pragma unroll
      for (int n = 0; n < TILES; ++n) w[n] = ahead[d][n];
      fetch(ahead[d], begin + (d + DEPTH) * kWarps);  // while the rows of x arrive
#pragma unroll
      for (int n = 0; n < TILES; ++n) {
        add_products(sum[n], of_x[d].pairs[0], of_x[d].pairs[1], w[n].pairs[0], w[n].pairs[1]);
        add_products(sum[n], of_x[d].pairs[2], of_x[d].pairs[3], w[n].pairs[2], w[n].pairs[3]);
      }
    }
  }
  sums.put(warp, lane, sum);
  __syncthreads();
}

/// y (rows, all out) = act(x weight^T + bias), or += if `adds`.
template <int TILES, int DEPTH>
__device__ inline void few_rows(Bf16* y, const Bf16* x, const Matrices<Bf16>& by, long long stride,
                                int rows, int columns, int activation, int adds) {
  __shared__ Sums<TILES> sums;
  let_next_start();
  const long long to = static_cast<long long>(blockIdx.x) * TILES * kTile;
  const long long all = by.columns();
  const MatrixRows at = tile_of(by, to, columns);
  const Bf16* tiles[TILES];
#pragma unroll
  for (int n = 0; n < TILES; ++n)
    tiles[n] = at.weight + static_cast<long long>(n) * kTile * columns;
  const int i = static_cast<int>(threadIdx.x) % (kTile * kTile);
  const int tile = static_cast<int>(threadIdx.x) / (kTile * kTile);
  const int row = i / kTile;
  const int column = tile * kTile + i % kTile;
  const bool writes = tile < TILES && row < rows;
  float offset = 0;
  if (at.bias != nullptr && writes) offset = widen(at.bias[column]);
  Bf16* const place = y + row * all + to + column;
  float before = 0;
  multiply<TILES, DEPTH>(sums, tiles, x, stride, rows, columns, [&] {
    if (adds && writes) before = widen(*place);
  });
  if (!writes) return;
  float sum = sums.total(tile, i);
  if (at.bias != nullptr) sum += offset;
  if (adds) sum += before;
  if (activation != kNoActivation) sum = activated(activation, widen(narrow<Bf16>(sum)));
  *place = narrow<Bf16>(sum);
}

#define NEAP_FEW_ROWS(name, TILES, DEPTH)                                                    \
  extern "C" __global__ void __launch_bounds__(kWarp* kWarps, 2)                             \
      few_rows_##name(Bf16* y, const Bf16* x, Matrices<Bf16> by, long long stride, int rows, \
                      int columns, int activation, int adds) {                               \
    few_rows<TILES, DEPTH>(y, x, by, stride, rows, columns, activation, adds);               \
  }
NEAP_FEW_ROWS(short, 1, 2)
NEAP_FEW_ROWS(long, 1, 4)
NEAP_FEW_ROWS(wide, 2, 2)

/// y (rows, out) = act(x gate^T) (x up^T), the first two matrices, of one size. Intermediate results are rounded as in gated.cu.
extern "C" __global__ void __launch_bounds__(kWarp* kWarps, 2)
    few_rows_gated(Bf16* y, const Bf16* x, Matrices<Bf16> by, long long stride, int rows,
                   int columns, int activation) {
  __shared__ Sums<2> sums;
  let_next_start();
  const long long tile = static_cast<long long>(blockIdx.x) * kTile;
  const Bf16* const tiles[2] = {by.weight[0] + tile * columns, by.weight[1] + tile * columns};
  multiply<2, 2>(sums, tiles, x, stride, rows, columns, [] {});
  const int i = static_cast<int>(threadIdx.x);
  if (i >= rows * kTile) return;
  const int row = i / kTile;
  y[row * static_cast<long long>(by.out[0]) + tile + i % kTile] = gated_sum(sums, i, activation);
}
