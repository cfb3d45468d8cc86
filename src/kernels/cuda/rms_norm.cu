// Backward of RMS norms, y = x rstd (weight + offset), in float32. A block reads consecutive rows,
// R at once; each of its threads reads K vectors of each row. The order of sums depends only on the
// sizes.

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
  float gain[K][N] = {};
  float of_weight[K][N] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= columns) continue;
    const Vector<T, N> w = load<N>(weight + column(k));
#pragma unroll
    for (int i = 0; i < N; ++i) gain[k][i] = widen(w.at[i]) + offset;
  }
  int turn = 0;
  for (long long row = first; row < end; row += R, turn ^= 1) {
    Vector<T, N> d[R][K] = {};
    Vector<T, N> v[R][K] = {};
    float means[R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (row + r >= end || column(k) >= columns) continue;
        d[r][k] = load<N>(dy + (row + r) * columns + column(k));
        v[r][k] = load<N>(x + (row + r) * columns + column(k));
#pragma unroll
        for (int i = 0; i < N; ++i) means[r] += gain[k][i] * widen(d[r][k].at[i]) * widen(v[r][k].at[i]);
      }
    }
    sum_over_block(means, turn);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (row + r >= end) break;
      const float scale = rstd[row + r];
      const float mean = means[r] * scale * scale * scale / static_cast<float>(columns);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (column(k) >= columns) continue;
        const long long at = (row + r) * columns + column(k);
        Vector<T, N> more = {};
        if (added != nullptr) more = load<N>(added + at);
        Vector<T, N> out;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float by = widen(d[r][k].at[i]);
          const float in = widen(v[r][k].at[i]);
          of_weight[k][i] += by * in * scale;
          const float gradient = scale * gain[k][i] * by - mean * in;
          out.at[i] = narrow<T>(added != nullptr ? gradient + widen(more.at[i]) : gradient);
        }
        store(dx + at, out);
      }
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

#define NEAP_RMS_NORM(name, T, N, K, R)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * kMostWarps)                                    \
      backward_##name(T* dx, const T* dy, const T* x, const float* rstd, const T* weight,          \
                      const T* added, float* sums, long long rows, long long columns,              \
                      float offset) {                                                              \
    backward<T, N, K, R>(dx, dy, x, rstd, weight, added, sums, rows, columns, offset);             \
  }
NEAP_RMS_NORM(bf16_vector, Bf16, 8, 1, 4)
NEAP_RMS_NORM(f32_vector, float, 4, 2, 2)

/// d_weight += the sum of all parts' sums (parts, columns).
template <class T>
__device__ inline void add_sums(T* d_weight, const float* sums, long long parts, long long columns) {
  __shared__ float of_groups[kSumGroups][kSumLanes];
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int group = static_cast<int>(threadIdx.x) / kSumLanes;
  const long long column = static_cast<long long>(blockIdx.x) * kSumLanes + lane;
  float sum = 0.0f;
  if (column < columns)
    for (long long part = group; part < parts; part += kSumGroups) sum += sums[part * columns + column];
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
