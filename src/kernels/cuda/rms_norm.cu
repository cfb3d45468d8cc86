// RMS norms, y = x rstd weight, and their backward for y = x rstd (weight + offset), in float32, rounded
// once. In the backward a block reads consecutive rows, R at once; each of its threads reads K vectors of
// each row. The order of sums depends only on the sizes.

#include "kernels/norm_sizes.h"

using namespace neap::kernels::norm;

constexpr int kMostWarps = 16;
constexpr int kSumLanes = 32, kSumGroups = 8;
constexpr unsigned kAll = 0xffffffffu;

/// Sums each of R numbers over the block. blockDim.x is a multiple of 32; `turn` alternates.
template <int R>
__device__ inline void sum_over_block(float (&sums)[R], int turn) {
  __shared__ float of_warps[2][R][kMostWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      sums[r] += __shfl_down_sync(kAll, sums[r], distance);
    if (lane == 0) of_warps[turn][r][warp] = sums[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; ++r) {
    sums[r] = 0.0f;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sums[r] += of_warps[turn][r][w];
  }
}

/// A thread's gains of its K vectors, weight + offset. Vector k begins at element at(k) if takes(k).
template <class T, int N, int K, class At, class Takes>
__device__ inline void load_gains(float (&gain)[K][N], const T* weight, float offset, At at,
                                  Takes takes) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!takes(k)) continue;
    const Vector<T, N> w = load<N>(weight + at(k));
#pragma unroll
    for (int i = 0; i < N; ++i) gain[k][i] = widen(w.at[i]) + offset;
  }
}

/// The sum of gain dy x over a thread's vectors of a row.
template <class T, int N, int K>
__device__ inline float sum_of_products(const float (&gain)[K][N], const Vector<T, N> (&d)[K],
                                        const Vector<T, N> (&v)[K]) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int i = 0; i < N; ++i) sum += gain[k][i] * widen(d[k].at[i]) * widen(v[k].at[i]);
  return sum;
}

/// Writes a thread's vectors of a row of dx, and adds to its sums for the weight's gradient. `added`
/// may be null.
template <class T, int N, int K, class At, class Takes>
__device__ inline void write_row(T* dx, const T* added, float (&of_weight)[K][N],
                                 const float (&gain)[K][N], const Vector<T, N> (&d)[K],
                                 const Vector<T, N> (&v)[K], float scale, float mean, At at,
                                 Takes takes) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!takes(k)) continue;
    Vector<T, N> more = {};
    if (added != nullptr) more = load<N>(added + at(k));
    Vector<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float by = widen(d[k].at[i]);
      const float in = widen(v[k].at[i]);
      of_weight[k][i] += by * in * scale;
      const float gradient = scale * gain[k][i] * by - mean * in;
      out.at[i] = narrow<T>(added != nullptr ? gradient + widen(more.at[i]) : gradient);
    }
    store(dx + at(k), out);
  }
}

/// dx = the gradient of x, plus `added` unless it is null. sums (gridDim.x, columns): each block's
/// part of the weight's gradient; null: not computed. All are contiguous.
template <class T, int N, int K, int R>
__device__ inline void backward(T* dx, const T* dy, const T* x, const float* rstd, const T* weight,
                                const T* added, float* sums, long long rows, long long columns,
                                float offset) {
  const long long share = (rows + gridDim.x - 1) / gridDim.x;
  const long long first = blockIdx.x * share;
  const long long end = first + share < rows ? first + share : rows;
  const auto column = [&](int k) {
    return (static_cast<long long>(k) * blockDim.x + threadIdx.x) * N;
  };
  const auto takes = [&](int k) { return column(k) < columns; };
  float gain[K][N] = {};
  float of_weight[K][N] = {};
  load_gains<T>(gain, weight, offset, column, takes);
  int turn = 0;
  for (long long row = first; row < end; row += R, turn ^= 1) {
    Vector<T, N> d[R][K] = {};
    Vector<T, N> v[R][K] = {};
    float means[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (row + r >= end || !takes(k)) continue;
        d[r][k] = load<N>(dy + (row + r) * columns + column(k));
        v[r][k] = load<N>(x + (row + r) * columns + column(k));
      }
      means[r] = sum_of_products(gain, d[r], v[r]);
    }
    sum_over_block(means, turn);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (row + r >= end) break;
      const float scale = rstd[row + r];
      const float mean = means[r] * scale * scale * scale / static_cast<float>(columns);
      write_row(
          dx, added, of_weight, gain, d[r], v[r], scale, mean,
          [&](int k) { return (row + r) * columns + column(k); }, takes);
    }
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= columns) continue;
    float* const to = sums + blockIdx.x * columns + column(k);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = of_weight[k][i];
  }
}

#define NEAP_RMS_NORM(name, T, N, K, R)                                                   \
  extern "C" __global__ void __launch_bounds__(32 * kMostWarps) backward_##name(          \
      T* dx, const T* dy, const T* x, const float* rstd, const T* weight, const T* added, \
      float* sums, long long rows, long long columns, float offset) {                     \
    backward<T, N, K, R>(dx, dy, x, rstd, weight, added, sums, rows, columns, offset);    \
  }
NEAP_RMS_NORM(bf16_vector, Bf16, 8, 1, 4)
NEAP_RMS_NORM(f32_vector, float, 4, 2, 2)

/// y and rstd = 1 / rms of a row, that of the block.
template <class T, int N, int K>
__device__ inline void forward(T* y, float* rstd, const T* x, const T* weight, long long columns,
                               float eps) {
  const auto column = [&](int k) {
    return (static_cast<long long>(k) * blockDim.x + threadIdx.x) * N;
  };
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  Vector<T, N> v[K] = {};
  float squares[1] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= columns) continue;
    v[k] = load<N>(x + column(k));
#pragma unroll
    for (int i = 0; i < N; ++i) squares[0] += widen(v[k].at[i]) * widen(v[k].at[i]);
  }
  sum_over_block(squares, 0);
  const float scale = rsqrtf(squares[0] / static_cast<float>(columns) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= columns) continue;
    const Vector<T, N> w = load<N>(weight + column(k));
    Vector<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = narrow<T>(widen(v[k].at[i]) * scale * widen(w.at[i]));
    store(y + column(k), out);
  }
}

#define NEAP_RMS_NORM_FORWARD(name, T, N, K)                                         \
  extern "C" __global__ void __launch_bounds__(32 * kMostWarps)                      \
      forward_##name(T* y, float* rstd, const T* x, const T* weight, long long rows, \
                     long long columns, float eps) {                                 \
    forward<T, N, K>(y, rstd, x, weight, columns, eps);                              \
  }
NEAP_RMS_NORM_FORWARD(bf16_vector, Bf16, 8, 1)
NEAP_RMS_NORM_FORWARD(f32_vector, float, 4, 2)

/// The sum over L neighbouring threads of a warp.
template <int L>
__device__ inline float sum_over_lanes(float x) {
#pragma unroll
  for (int distance = L / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAll, x, distance);
  return x;
}

/// The same for rows of kOfThread L elements.
template <class T, int N, int K, int L>
__device__ inline void forward_heads(T* y, float* rstd, const T* x, const T* weight, long long rows,
                                     float eps) {
  constexpr int kColumns = N * K * L, kGroups = kHeadThreads / L;
  const int lane = static_cast<int>(threadIdx.x) % L, group = static_cast<int>(threadIdx.x) / L;
  const long long first = static_cast<long long>(blockIdx.x) * kGroups * kRowsOfLanes + group;
  Vector<T, N> v[kRowsOfLanes][K] = {};
#pragma unroll
  for (int r = 0; r < kRowsOfLanes; ++r) {
    const long long row = first + r * kGroups;
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (row < rows) v[r][k] = load<N>(x + row * kColumns + (k * L + lane) * N);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfLanes; ++r) {
    const long long row = first + r * kGroups;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < N; ++i) squares += widen(v[r][k].at[i]) * widen(v[r][k].at[i]);
    squares = sum_over_lanes<L>(squares);
    const float scale = rsqrtf(squares / static_cast<float>(kColumns) + eps);
    if (row >= rows) continue;
    if (lane == 0) rstd[row] = scale;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int column = (k * L + lane) * N;
      const Vector<T, N> w = load<N>(weight + column);
      Vector<T, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i)
        out.at[i] = narrow<T>(widen(v[r][k].at[i]) * scale * widen(w.at[i]));
      store(y + row * kColumns + column, out);
    }
  }
}

/// Computes the same as backward(). Rows have kOfThread L elements; a block reads consecutive ones.
template <class T, int N, int K, int L>
__device__ inline void backward_heads(T* dx, const T* dy, const T* x, const float* rstd,
                                      const T* weight, const T* added, float* sums, long long rows,
                                      float offset) {
  constexpr int kColumns = N * K * L, kGroups = kHeadThreads / L, R = kRowsOfLanes;
  __shared__ float of_groups[kGroups][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % L, group = static_cast<int>(threadIdx.x) / L;
  const long long share = (rows + gridDim.x - 1) / gridDim.x;
  const long long first = blockIdx.x * share;
  const long long end = first + share < rows ? first + share : rows;
  const auto column = [&](int k) { return (k * L + lane) * N; };
  const auto takes = [](int) { return true; };
  float gain[K][N];
  float of_weight[K][N] = {};
  load_gains<T>(gain, weight, offset, column, takes);
  for (long long begin = first; begin < end; begin += R * kGroups) {
    Vector<T, N> d[R][K] = {};
    Vector<T, N> v[R][K] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const long long row = begin + r * kGroups + group;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (row >= end) continue;
        d[r][k] = load<N>(dy + row * kColumns + column(k));
        v[r][k] = load<N>(x + row * kColumns + column(k));
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const long long row = begin + r * kGroups + group;
      float mean = sum_over_lanes<L>(sum_of_products(gain, d[r], v[r]));
      if (row >= end) continue;
      const float scale = rstd[row];
      mean *= scale * scale * scale / static_cast<float>(kColumns);
      write_row(
          dx, added, of_weight, gain, d[r], v[r], scale, mean,
          [&](int k) { return row * kColumns + column(k); }, takes);
    }
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int i = 0; i < N; ++i) of_groups[group][column(k) + i] = of_weight[k][i];
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  if (own >= kColumns) return;
  float all = 0.0f;
  for (int g = 0; g < kGroups; ++g) all += of_groups[g][own];
  sums[blockIdx.x * kColumns + own] = all;
}

#define NEAP_RMS_NORM_HEADS(name, T, N, K, L)                                                    \
  extern "C" __global__ void __launch_bounds__(kHeadThreads)                                     \
      forward_heads_##name##_##L(T* y, float* rstd, const T* x, const T* weight, long long rows, \
                                 long long columns, float eps) {                                 \
    forward_heads<T, N, K, L>(y, rstd, x, weight, rows, eps);                                    \
  }                                                                                              \
  extern "C" __global__ void __launch_bounds__(kHeadThreads) backward_heads_##name##_##L(        \
      T* dx, const T* dy, const T* x, const float* rstd, const T* weight, const T* added,        \
      float* sums, long long rows, long long columns, float offset) {                            \
    backward_heads<T, N, K, L>(dx, dy, x, rstd, weight, added, sums, rows, offset);              \
  }
NEAP_RMS_NORM_HEADS(bf16, Bf16, 8, 1, 8)
NEAP_RMS_NORM_HEADS(bf16, Bf16, 8, 1, 16)
NEAP_RMS_NORM_HEADS(bf16, Bf16, 8, 1, 32)
NEAP_RMS_NORM_HEADS(f32, float, 4, 2, 8)
NEAP_RMS_NORM_HEADS(f32, float, 4, 2, 16)
NEAP_RMS_NORM_HEADS(f32, float, 4, 2, 32)

/// d_weight += the sum of all parts' sums (parts, columns).
template <class T>
__device__ inline void add_sums(T* d_weight, const float* sums, long long parts,
                                long long columns) {
  __shared__ float of_groups[kSumGroups][kSumLanes];
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int group = static_cast<int>(threadIdx.x) / kSumLanes;
  const long long column = static_cast<long long>(blockIdx.x) * kSumLanes + lane;
  float sum = 0.0f;
  if (column < columns)
    for (long long part = group; part < parts; part += kSumGroups)
      sum += sums[part * columns + column];
  of_groups[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  float all = 0.0f;
  for (int g = 0; g < kSumGroups; ++g) all += of_groups[g][lane];
  d_weight[column] = narrow<T>(widen(d_weight[column]) + all);
}

extern "C" __global__ void add_sums_bf16(Bf16* d_weight, const float* sums, long long parts,
                                         long long columns) {
  add_sums(d_weight, sums, parts, columns);
}
extern "C" __global__ void add_sums_f32(float* d_weight, const float* sums, long long parts,
                                        long long columns) {
  add_sums(d_weight, sums, parts, columns);
}
