// Parts of the kernels for products of few rows: products of a warp, and sums of a block's warps.
#include "activation.cuh"
#include "eight.cuh"

constexpr int kStep = kRoundColumns / kWarps;  // columns of a warp at once
constexpr int kLanesOfRow = 4;                 // of a warp, that read a row

__device__ inline float2 both_of(unsigned pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline unsigned pair_of(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Adds the products of 8 rows of x with a tile, over 16 columns. Rows 8 to 15 are zero.
__device__ inline void add_products(float (&sum)[4], unsigned x0, unsigned x1, unsigned w0,
                                    unsigned w1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, "
      "{%7, %8}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(x0), "r"(0u), "r"(x1), "r"(w0), "r"(w1));
}

/// Sums of the block's tiles, by warp.
template <int TILES>
struct Sums {
  float of_warps[kWarps][TILES][kTile * kTile];
  /// Element i of a tile belongs to row (i / kTile) of x.
  __device__ float total(int tile, int i) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][tile][i];
    return sum;
  }
  /// Stores a lane's two elements of each tile.
  __device__ void put(int warp, int lane, const float (&sum)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
      of_warps[warp][n][2 * lane] = sum[n][0];
      of_warps[warp][n][2 * lane + 1] = sum[n][1];
    }
  }
};
/// Element i of act(gate) up, of the tiles 0 and 1. Intermediate results are rounded as in gated.cu.
__device__ inline Bf16 gated_sum(const Sums<2>& sums, int i, int activation) {
  const float gate = widen(narrow<Bf16>(sums.total(0, i)));
  const float up = widen(narrow<Bf16>(sums.total(1, i)));
  return narrow<Bf16>(widen(narrow<Bf16>(activated(activation, gate))) * up);
}

/// The first rows of tiles.
template <int TILES>
struct TilesAt {
  const Bf16* tile[TILES];
};
/// Row `row` of the matrices and those behind.
struct MatrixRows {
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;
};
__device__ inline MatrixRows tile_of(const Matrices<Bf16>& by, long long row, int columns) {
#pragma unroll
  for (int m = 0; m < kMostMatrices; ++m) {
    if (row < by.out[m])
      return {by.weight[m] + row * columns, by.bias[m] == nullptr ? nullptr : by.bias[m] + row};
    row -= by.out[m];
  }
  return {};
}
