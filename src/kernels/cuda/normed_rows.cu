// Products of norms of at most eight rows with matrices (out, in), as decoding has them. A block keeps its rows of
// x in registers, at most kMostNormed columns. It normalizes them in float32 and rounds once. Then it multiplies
// every gridDim.x-th tile of the matrices, and reads the next one while it adds the sums of the last. Its warps
// share the columns. Sums have a fixed order, so a row's result does not depend on other rows.

#include "few_rows.cuh"

/// Copies 8 numbers to shared memory, or zeros.
__device__ inline void copy_ahead(Eight* to, const Bf16* from, bool inside) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
/// Weights and biases of the norm, for the columns of a warp's lanes: four read a row.
template <int D>
struct Gains {
  Eight weight[D][kWarps][kLanesOfRow], bias[D][kWarps][kLanesOfRow];
};
/// Normalizes the rows of x, of which a thread has D times 8 columns.
template <int D>
__device__ inline void normalize(Eight (&x)[D], const Gains<D>& gains, const bool (&inside)[D],
                                 const RowsNorm<Bf16>& by, int columns) {
  __shared__ float of_warps[2][kWarps][kTile];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = lane / kLanesOfRow, part = lane % kLanesOfRow;
  const auto of_row = [&](float sum, int turn) {
#pragma unroll
    for (int distance = 1; distance < kLanesOfRow; distance *= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (part == 0) of_warps[turn][warp][row] = sum;
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += of_warps[turn][w][row];
    return all;
  };
  const float count = static_cast<float>(columns);
  float mean = 0;
  if (by.centered) {
    float sum = 0;
#pragma unroll
    for (int d = 0; d < D; ++d)
#pragma unroll
      for (const unsigned pair : x[d].pairs) sum += both_of(pair).x + both_of(pair).y;
    mean = of_row(sum, 0) / count;
  }
  float squares = 0;
#pragma unroll
  for (int d = 0; d < D; ++d) {
    if (!inside[d]) continue;
#pragma unroll
    for (const unsigned pair : x[d].pairs) {
      const float2 two = both_of(pair);
      squares += (two.x - mean) * (two.x - mean) + (two.y - mean) * (two.y - mean);
    }
  }
  const float scale = rsqrtf(of_row(squares, 1) / count + by.eps);
#pragma unroll
  for (int d = 0; d < D; ++d) {
    const Eight gain = gains.weight[d][warp][part];
    Eight more = {};
    if (by.bias != nullptr) more = gains.bias[d][warp][part];
#pragma unroll
    for (int i = 0; i < kOfLane / 2; ++i) {
      const float2 two = both_of(x[d].pairs[i]), g = both_of(gain.pairs[i]),
                   b = both_of(more.pairs[i]);
      x[d].pairs[i] = pair_of((two.x - mean) * scale * (g.x + by.offset) + b.x,
                              (two.y - mean) * scale * (g.y + by.offset) + b.y);
    }
  }
}

/// Multiplies the norm by the block's tiles; `tiles_of(tile)` are their first rows. `expect(tile)` reads ahead for
/// `write(tile, sums, expected)`. All threads call each of them.
template <int TILES, int D, class TilesOf, class Expect, class Write>
__device__ inline void normed_rows(const Bf16* x, long long stride, int rows, int columns,
                                   int count, const RowsNorm<Bf16>& norm, const TilesOf& tiles_of,
                                   const Expect& expect, const Write& write) {
  __shared__ Sums<TILES> sums[2];
  __shared__ Gains<D> gains;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = lane / kLanesOfRow;  // of a tile, and of x
  const int first = warp * kStep + lane % kLanesOfRow * kOfLane;
  bool inside[D];
#pragma unroll
  for (int d = 0; d < D; ++d) inside[d] = first + d * kRoundColumns < columns;
  Eight ahead[D][TILES];
  const Bf16* from[TILES];
  const auto fetch = [&](int d, bool there) {
#pragma unroll
    for (int n = 0; n < TILES; ++n)
      ahead[d][n] = read_once(from[n] + d * kRoundColumns, there && inside[d]);
  };
  const auto aim = [&](int tile) {
    const TilesAt<TILES> at = tiles_of(tile);
#pragma unroll
    for (int n = 0; n < TILES; ++n)
      from[n] = at.tile[n] + static_cast<long long>(row) * columns + first;
  };
  int tile = static_cast<int>(blockIdx.x);
  aim(tile);
#pragma unroll
  for (int d = 0; d < D; ++d) fetch(d, true);
  if (row == 0) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const int column = first + d * kRoundColumns;
      copy_ahead(&gains.weight[d][warp][lane], norm.weight + (inside[d] ? column : 0), inside[d]);
      if (norm.bias != nullptr)
        copy_ahead(&gains.bias[d][warp][lane], norm.bias + (inside[d] ? column : 0), inside[d]);
    }
  }
  wait_for_previous();
  const Bf16* const row_of_x = x + min(row, rows - 1) * stride + first;
  Eight of_x[D];
#pragma unroll
  for (int d = 0; d < D; ++d)
    of_x[d] = inside[d] ? *reinterpret_cast<const Eight*>(row_of_x + d * kRoundColumns) : Eight{};
  asm volatile("cp.async.wait_all;" ::: "memory");
  normalize<D>(of_x, gains, inside, norm, columns);
  for (int turn = 0; tile < count; turn ^= 1) {
    const auto expected = expect(tile);
    const int next = tile + static_cast<int>(gridDim.x);
    if (next < count) aim(next);
    float sum[TILES][4] = {};
#pragma unroll
    for (int d = 0; d < D; ++d) {
      Eight w[TILES];
#pragma unroll
      for (int n = 0; n < TILES; ++n) w[n] = ahead[d][n];
      fetch(d, next < count);
#pragma unroll
      for (int n = 0; n < TILES; ++n) {
        add_products(sum[n], of_x[d].pairs[0], of_x[d].pairs[1], w[n].pairs[0], w[n].pairs[1]);
        add_products(sum[n], of_x[d].pairs[2], of_x[d].pairs[3], w[n].pairs[2], w[n].pairs[3]);
      }
    }
    sums[turn].put(warp, lane, sum);
    __syncthreads();  // also: the sums before the last have been read
    write(tile, sums[turn], expected);
    tile = next;
  }
}

/// y (rows, all out) = act(norm(x) weight^T + bias).
template <int TILES, int D>
__device__ inline void plain(Bf16* y, const Bf16* x, const Matrices<Bf16>& by, long long stride,
                             int rows, int columns, int activation, const RowsNorm<Bf16>& norm) {
  constexpr int kRows = TILES * kTile;  // of the matrices
  let_next_start();
  const int all = by.columns();
  const int i = static_cast<int>(threadIdx.x) % (kTile * kTile);
  const int of_tile = static_cast<int>(threadIdx.x) / (kTile * kTile);
  const int row = i / kTile, column = of_tile * kTile + i % kTile;
  const bool writes = of_tile < TILES && row < rows;
  normed_rows<TILES, D>(
      x, stride, rows, columns, all / kRows, norm,
      [&](int tile) {
        TilesAt<TILES> at;
        const Bf16* const first = tile_of(by, tile * kRows, columns).weight;
#pragma unroll
        for (int n = 0; n < TILES; ++n)
          at.tile[n] = first + static_cast<long long>(n) * kTile * columns;
        return at;
      },
      [&](int tile) {
        const Bf16* const bias = tile_of(by, tile * kRows, columns).bias;
        return bias != nullptr && writes ? widen(bias[column]) : 0.0f;
      },
      [&](int tile, const Sums<TILES>& sums, float offset) {
        if (!writes) return;
        float sum = sums.total(of_tile, i) + offset;
        if (activation != kNoActivation) sum = activated(activation, widen(narrow<Bf16>(sum)));
        y[row * static_cast<long long>(all) + tile * kRows + column] = narrow<Bf16>(sum);
      });
}

/// y (rows, out) = act(norm(x) gate^T) (norm(x) up^T), the first two matrices, of one size. Intermediate results
/// are rounded as in gated.cu.
template <int D>
__device__ inline void gated(Bf16* y, const Bf16* x, const Matrices<Bf16>& by, long long stride,
                             int rows, int columns, int activation, const RowsNorm<Bf16>& norm) {
  let_next_start();
  const int i = static_cast<int>(threadIdx.x);
  const int row = i / kTile, column = i % kTile;
  normed_rows<2, D>(
      x, stride, rows, columns, by.out[0] / kTile, norm,
      [&](int tile) -> TilesAt<2> {
        const long long at = static_cast<long long>(tile) * kTile * columns;
        return {{by.weight[0] + at, by.weight[1] + at}};
      },
      [](int) { return 0; },
      [&](int tile, const Sums<2>& sums, int) {
        if (i < rows * kTile)
          y[row * static_cast<long long>(by.out[0]) + tile * kTile + column] =
              gated_sum(sums, i, activation);
      });
}

#define NEAP_NORMED_ROWS(name, BLOCKS, ...)                                                     \
  extern "C" __global__ void __launch_bounds__(kWarp* kWarps, BLOCKS)                           \
      normed_rows_##name(Bf16* y, const Bf16* x, Matrices<Bf16> by, long long stride, int rows, \
                         int columns, int activation, RowsNorm<Bf16> norm) {                    \
    __VA_ARGS__(y, x, by, stride, rows, columns, activation, norm);                             \
  }
NEAP_NORMED_ROWS(2, 2, plain<1, 2>)
NEAP_NORMED_ROWS(3, 2, plain<1, 3>)
NEAP_NORMED_ROWS(4, 2, plain<1, 4>)
NEAP_NORMED_ROWS(wide_4, 1, plain<2, 4>)
NEAP_NORMED_ROWS(gated_2, 2, gated<2>)
NEAP_NORMED_ROWS(gated_3, 2, gated<3>)
NEAP_NORMED_ROWS(gated_4, 1, gated<4>)
