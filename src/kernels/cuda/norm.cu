// Norms of rows, in float32, rounded once: y = x / rms (weight + offset), or (x - mean) / deviation
// weight + bias. Then adds a vector to x in place. A block has one row; a thread reads N adjacent
// elements at once and keeps its first ones in registers. Weights and vectors are read before the
// previous kernel, which does not write them, has ended.

constexpr int kMostWarps = 32;
constexpr unsigned kAll = 0xffffffffu;

/// The sum over the block. blockDim.x is a multiple of 32.
__device__ inline float sum_over_block(float x) {
  __shared__ float of_warps[kMostWarps];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAll, x, distance);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) of_warps[warp] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < warps; ++w) sum += of_warps[w];
  return sum;
}

/// x (rows, columns) has a stride between rows; y is contiguous. bias and added null: none.
template <class T, int N>
__device__ inline void norm(T* y, T* x, long long stride, const T* weight, const T* bias,
                            const T* added, long long columns, float eps, float offset,
                            int centered) {
  let_next_start();
  const long long first = static_cast<long long>(threadIdx.x) * N;
  const long long step = static_cast<long long>(blockDim.x) * N;
  const auto first_of = [&](const T* from) {
    return from != nullptr && first < columns ? load<N>(from + first) : Vector<T, N>{};
  };
  const Vector<T, N> first_gain = first_of(weight);
  const Vector<T, N> first_bias = first_of(bias);
  const Vector<T, N> first_added = first_of(added);
  wait_for_previous();
  T* const row = x + blockIdx.x * stride;
  T* const to = y + blockIdx.x * columns;
  const Vector<T, N> first_x = first_of(row);
  const auto at_of = [&](const Vector<T, N>& ahead, const T* from, long long at) {
    return at == first ? ahead : load<N>(from + at);
  };
  const float count = static_cast<float>(columns);
  float mean = 0.0f;
  if (centered) {
    float sum = 0.0f;
    for (long long at = first; at < columns; at += step) {
      const Vector<T, N> v = at_of(first_x, row, at);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += widen(v.at[i]);
    }
    mean = sum_over_block(sum) / count;
  }
  float squares = 0.0f;
  for (long long at = first; at < columns; at += step) {
    const Vector<T, N> v = at_of(first_x, row, at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float off = widen(v.at[i]) - mean;
      squares += off * off;
    }
  }
  const float scale = rsqrtf(sum_over_block(squares) / count + eps);
  for (long long at = first; at < columns; at += step) {
    Vector<T, N> v = at_of(first_x, row, at);
    const Vector<T, N> gain = at_of(first_gain, weight, at);
    Vector<T, N> more = {};
    if (bias != nullptr) more = at_of(first_bias, bias, at);
    Vector<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = (widen(v.at[i]) - mean) * scale * (widen(gain.at[i]) + offset);
      out.at[i] = narrow<T>(scaled + widen(more.at[i]));
    }
    store(to + at, out);
    if (added == nullptr) continue;
    const Vector<T, N> by = at_of(first_added, added, at);
#pragma unroll
    for (int i = 0; i < N; ++i) v.at[i] = narrow<T>(widen(v.at[i]) + widen(by.at[i]));
    store(row + at, v);
  }
}

#define NEAP_NORM(name, T, N)                                                                     \
  extern "C" __global__ void norm_##name(T* y, T* x, long long stride, const T* weight,           \
                                         const T* bias, const T* added, long long columns,        \
                                         float eps, float offset, int centered) {                 \
    norm<T, N>(y, x, stride, weight, bias, added, columns, eps, offset, centered);                \
  }
NEAP_KERNELS_OF_TYPES(NEAP_NORM)
