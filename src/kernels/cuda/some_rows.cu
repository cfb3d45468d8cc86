// Products of at most 16 rows with matrices (out, in) for decoding. The time to read the matrices bounds
// them. A block has kRowsOfBlock rows of the matrices, and the blocks of a cluster divide the columns.
// Sums are added in a fixed order: within this kernel, the bits of a row do not depend on other rows.
// Matrices are prefetched to registers, rows of x to shared memory. Reading matrices begins before the
// previous kernel has ended.

#include "activation.cuh"
#include "eight.cuh"

constexpr int kStep = 32;                            // columns of a warp at once
constexpr int kRowsOfWarp = 2 * kTile;               // of the matrices
constexpr int kGroups = kRowsOfBlock / kRowsOfWarp;  // of warps with the same rows
constexpr int kSteps = 2;                            // of a warp in a chunk of x
constexpr int kChunks = 2;                           // of the matrices, in flight
constexpr int kColumns = kStep * kShares * kSteps;   // of a chunk
constexpr int kBuffers = 3;                          // for chunks of x
constexpr int kRowOfX = kColumns + kStep;     // the rest keeps neighbouring rows in different banks
constexpr int kRowOfSums = kRowsOfBlock + 4;  // as well

/// Adds the products of 16 rows of the matrices with 8 of x, over 16 columns.
__device__ inline void add_products(float (&sum)[4], unsigned w0, unsigned w1, unsigned w2,
                                    unsigned w3, unsigned x0, unsigned x1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "r"(x0), "r"(x1));
}
/// Copies 8 numbers to shared memory, or zeros.
__device__ inline void copy_ahead(Bf16* to, const Bf16* from, bool inside) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void end_of_chunk() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all chunks but the last have arrived.
__device__ inline void wait_for_chunk() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ inline int blocks_of_cluster() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return static_cast<int>(n);
}
__device__ inline int place_in_cluster() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
  return static_cast<int>(n);
}
/// Then the blocks' shared memory is as each has written it.
__device__ inline void wait_for_sums() {
  if (blocks_of_cluster() == 1) {
    __syncthreads();
    return;
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
/// Shared memory is there until others have read it.
__device__ inline void wait_for_readers() {
  if (blocks_of_cluster() == 1) return;
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                   : "memory");
}
/// From the shared memory of another block of the cluster, at the address that it has in this one.
__device__ inline float4 read_of_block(const float* from, int block) {
  float4 x;
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
#else  // a cluster is a block
__device__ inline int blocks_of_cluster() {
  return 1;
}
__device__ inline int place_in_cluster() {
  return 0;
}
__device__ inline void wait_for_sums() {
  __syncthreads();
}
__device__ inline void wait_for_readers() {}
__device__ inline float4 read_of_block(const float* from, int) {
  return *reinterpret_cast<const float4*>(from);
}
#endif

/// A row of one of the matrices; null behind the last.
struct Row {
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;  ///< of this row and those behind
};
__device__ inline Row row_of(const Matrices<Bf16>& by, long long row, int columns) {
  for (int m = 0; m < 3; ++m) {
    if (row < by.out[m])
      return {by.weight[m] + row * columns, by.bias[m] == nullptr ? nullptr : by.bias[m] + row};
    row -= by.out[m];
  }
  return {};
}

/// The sums of four rows of the matrices for a row of x, over all columns.
template <int ROWS>
__device__ inline float4 total(const float (*sums)[ROWS][kRowOfSums], int row, int first) {
  float4 sum = {};
  const int blocks = blocks_of_cluster();
  for (int block = 0; block < blocks; ++block) {
#pragma unroll
    for (int share = 0; share < kShares; ++share) {
      const float4 part = read_of_block(&sums[share][row][first], block);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
  }
  return sum;
}

/// y (rows, all out) = act(x weight^T + bias), or += where `adds`; where `gated`, y (rows, out) = act(x gate^T) (x up^T) by the
/// first two matrices, of one size. Intermediate results are rounded as in gated.cu. blockIdx.x is the block's place in its
/// cluster. T tiles of x.
template <int T>
__device__ inline void some_rows(Bf16* y, const Bf16* x, const Matrices<Bf16>& by, long long stride,
                                 int rows, int columns, int activation, int adds, int gated) {
  constexpr int kRows = T * kTile;
  __shared__ union alignas(16) {
    Bf16 x[kBuffers][kRows][kRowOfX];
    float sums[kShares][kRows][kRowOfSums];
  } shared;
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int group = thread / kWarp % kGroups;
  const int share = thread / kWarp / kGroups;
  const long long tile = blockIdx.y;
  const int steps = (columns + kStep - 1) / kStep;
  const int of_block = (steps + blocks_of_cluster() - 1) / blocks_of_cluster();
  const int begin = of_block * place_in_cluster() * kStep;
  const int end = min(columns, begin + of_block * kStep);
  const int chunks = begin < end ? (end - begin + kColumns - 1) / kColumns : 0;

  // A lane has rows lane / 4 of both halves of a tile of 16 rows; gate and up are such halves.
  const Bf16* weight[2];
  bool there[2];
  const int first = lane % 4 * kOfLane;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const long long of_half = (tile * kGroups + group) * kTile + lane / 4;
    const long long of_tile = tile * kRowsOfBlock + group * kRowsOfWarp + h * kTile + lane / 4;
    const Row row = gated ? row_of(by, h * static_cast<long long>(by.out[0]) + of_half, columns)
                          : row_of(by, of_tile, columns);
    if (row.bias != nullptr && share == 0 && lane % 4 == 0) fetch_ahead(row.bias);
    there[h] = row.weight != nullptr && (!gated || of_half < by.out[0]);
    weight[h] = row.weight + first;
  }
  Eight ahead[kChunks * kSteps][2];
  const auto fetch = [&](Eight(&to)[2], int chunk, int step) {
    const int column = begin + chunk * kColumns + (step * kShares + share) * kStep;
    const bool inside = column + first < end;
#pragma unroll
    for (int h = 0; h < 2; ++h) to[h] = read_once(weight[h] + column, inside && there[h]);
  };
#pragma unroll
  for (int i = 0; i < kChunks * kSteps; ++i) fetch(ahead[i], i / kSteps, i % kSteps);
  wait_for_previous();
  const auto fetch_x = [&](int chunk) {
    constexpr int kVectors = kColumns / kOfLane;
    if (chunk < chunks) {
#pragma unroll
      for (int first = 0; first < kRows * kVectors; first += kSomeRowsThreads) {
        const int i = first + thread;
        if (i >= kRows * kVectors) break;
        const int row = i / kVectors;
        const int at = i % kVectors * kOfLane;
        const int column = begin + chunk * kColumns + at;
        const bool inside = row < rows && column < end;
        copy_ahead(&shared.x[chunk % kBuffers][row][at], inside ? x + row * stride + column : x,
                   inside);
      }
    }
    end_of_chunk();
  };
  fetch_x(0);
  fetch_x(1);
  float sum[T][4] = {};
  for (int round = 0; round < chunks; round += kChunks) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = round + c;
      if (chunk >= chunks) break;
      wait_for_chunk();
      __syncthreads();
      fetch_x(chunk + 2);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        Eight(&w)[2] = ahead[c * kSteps + s];
        const int column = (s * kShares + share) * kStep + first;
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const Eight v = *reinterpret_cast<const Eight*>(
              &shared.x[chunk % kBuffers][t * kTile + lane / 4][column]);
          add_products(sum[t], w[0].pairs[0], w[1].pairs[0], w[0].pairs[1], w[1].pairs[1],
                       v.pairs[0], v.pairs[1]);
          add_products(sum[t], w[0].pairs[2], w[1].pairs[2], w[0].pairs[3], w[1].pairs[3],
                       v.pairs[2], v.pairs[3]);
        }
        fetch(w, chunk + kChunks, s);
      }
    }
  }
  __syncthreads();  // the rows of x have been read
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      shared.sums[share][t * kTile + lane % 4 * 2 + i % 2]
                 [group * kRowsOfWarp + i / 2 * kTile + lane / 4] = sum[t][i];
  }
  wait_for_sums();

  // A thread has four neighbours of a row of y.
  constexpr int kFour = 4;
  const int outs = gated ? kRowsOfBlock / 2 : kRowsOfBlock;
  const long long all =
      gated ? by.out[0] : static_cast<long long>(by.out[0]) + by.out[1] + by.out[2];
  const int fours = rows * outs / kFour;
  const int mine = (fours + blocks_of_cluster() - 1) / blocks_of_cluster();
  const int last = min(fours, mine * (place_in_cluster() + 1));
  for (int i = mine * place_in_cluster() + thread; i < last; i += kSomeRowsThreads) {
    const int row = i / (outs / kFour);
    const int at = i % (outs / kFour) * kFour;
    const long long column = tile * outs + at;
    if (column >= all) continue;
    Bf16* const place = y + row * all + column;
    Vector<Bf16, kFour> out;
    if (gated) {
      const int half = at / kTile * kRowsOfWarp + at % kTile;
      const float4 of_gate = total(shared.sums, row, half);
      const float4 of_up = total(shared.sums, row, half + kTile);
      const float gate[kFour] = {of_gate.x, of_gate.y, of_gate.z, of_gate.w};
      const float up[kFour] = {of_up.x, of_up.y, of_up.z, of_up.w};
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        const float a = widen(narrow<Bf16>(activated(activation, widen(narrow<Bf16>(gate[k])))));
        out.at[k] = narrow<Bf16>(a * widen(narrow<Bf16>(up[k])));
      }
    } else {
      const float4 sums = total(shared.sums, row, at);
      float four[kFour] = {sums.x, sums.y, sums.z, sums.w};
      const Bf16* const bias = row_of(by, column, columns).bias;
      Vector<Bf16, kFour> before = {};
      if (adds) before = load<kFour>(place);
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        if (bias != nullptr) four[k] += widen(bias[k]);
        if (adds) four[k] += widen(before.at[k]);
        if (activation != kNoActivation)
          four[k] = activated(activation, widen(narrow<Bf16>(four[k])));
        out.at[k] = narrow<Bf16>(four[k]);
      }
    }
    store(place, out);
  }
  wait_for_readers();
}

#define NEAP_SOME_ROWS(T)                                                                  \
  extern "C" __global__ void __launch_bounds__(kSomeRowsThreads, 3)                        \
      some_rows_##T(Bf16* y, const Bf16* x, Matrices<Bf16> by, long long stride, int rows, \
                    int columns, int activation, int adds, int gated) {                    \
    some_rows<T>(y, x, by, stride, rows, columns, activation, adds, gated);                \
  }
NEAP_SOME_ROWS(1)
NEAP_SOME_ROWS(2)
