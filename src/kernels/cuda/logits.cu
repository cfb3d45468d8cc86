// Log-probabilities and entropies from logits (rows, columns), and a loss's gradient, which
// replaces the logits. A block reads a row. Each logit l is transformed first: cap * tanh(l / cap)
// if there is a cap, then a division. All arithmetic is in float32; the order of sums depends only
// on the row's length.

constexpr int kMostWarps = 32;
constexpr float kLowest = -3.402823466e+38f;
constexpr unsigned kAll = 0xffffffffu;

/// For some logits x: the largest, sum exp(x - top), and the sum of these terms times (x - top).
struct Sums {
  float top, sum, weighted;
};
__device__ inline Sums none() {
  return {kLowest, 0.0f, 0.0f};
}
__device__ inline Sums rebased(const Sums& s, float top) {
  if (s.sum == 0.0f) return {top, 0.0f, 0.0f};
  const float shift = s.top - top;
  const float by = expf(shift);
  return {top, s.sum * by, by * (s.weighted + shift * s.sum)};
}
__device__ inline Sums joined(const Sums& a, const Sums& b) {
  const float top = fmaxf(a.top, b.top);
  const Sums x = rebased(a, top);
  const Sums y = rebased(b, top);
  return {top, x.sum + y.sum, x.weighted + y.weighted};
}
__device__ inline Sums joined_in_warp(Sums s) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Sums other{__shfl_down_sync(kAll, s.top, distance), __shfl_down_sync(kAll, s.sum, distance),
                     __shfl_down_sync(kAll, s.weighted, distance)};
    s = joined(s, other);
  }
  return s;
}

/// log_probs, log_sums, entropies and rights have one element per row; the last two may be null.
/// blockDim.x is a multiple of 32.
template <class T, int N>
__device__ inline void values(const T* logits, long long stride, const long long* targets,
                              float* log_probs, float* log_sums, float* entropies, float* rights,
                              long long columns, Shaping shaping) {
  const long long row = blockIdx.x;
  const T* const from = logits + row * stride;
  Sums s = none();
  for (long long at = static_cast<long long>(threadIdx.x) * N; at < columns;
       at += static_cast<long long>(blockDim.x) * N) {
    const Vector<T, N> x = load<N>(from + at);
    float z[N];
    float top = s.top;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      z[i] = shaped(widen(x.at[i]), shaping);
      top = fmaxf(top, z[i]);
    }
    if (top > s.top) s = rebased(s, top);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float above = z[i] - s.top;
      const float e = expf(above);
      s.sum += e;
      if (entropies != nullptr && e > 0.0f) s.weighted += e * above;
    }
  }
  __shared__ Sums of_warps[kMostWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  s = joined_in_warp(s);
  if (lane == 0) of_warps[warp] = s;
  __syncthreads();
  if (warp != 0) return;
  s = joined_in_warp(lane < static_cast<int>(blockDim.x) / 32 ? of_warps[lane] : none());
  if (lane != 0) return;
  const float chosen = shaped(widen(from[targets[row]]), shaping);
  const float log_above = logf(s.sum);
  const float log_sum = log_above + s.top;
  log_sums[row] = log_sum;
  log_probs[row] = chosen - log_sum;
  if (entropies != nullptr) entropies[row] = log_above - s.weighted / s.sum;
  if (rights != nullptr) rights[row] = chosen >= s.top ? 1.0f : 0.0f;
}

/// Replaces the logits by the loss's gradient with respect to them. d_entropies null: the loss has
/// no entropy.
template <class T, int N>
__device__ inline void gradient(T* logits, long long stride, const long long* targets,
                                const float* log_sums, const float* d_log_probs,
                                const float* entropies, const float* d_entropies, long long columns,
                                Shaping shaping) {
  const long long row = blockIdx.x;
  T* const of_row = logits + row * stride;
  const long long target = targets[row];
  const float log_sum = log_sums[row];
  const float d_log_prob = d_log_probs[row];
  const bool of_entropy = d_entropies != nullptr;
  const float entropy = of_entropy ? entropies[row] : 0.0f;
  const float d_entropy = of_entropy ? d_entropies[row] : 0.0f;
  for (long long at = static_cast<long long>(threadIdx.x) * N; at < columns;
       at += static_cast<long long>(blockDim.x) * N) {
    Vector<T, N> x = load<N>(of_row + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float logit = widen(x.at[i]);
      const float log_prob = shaped(logit, shaping) - log_sum;
      const float p = expf(log_prob);
      float g = -p * d_log_prob;
      if (of_entropy && p > 0.0f) g -= p * (log_prob + entropy) * d_entropy;
      if (at + i == target) g += d_log_prob;
      if (shaping.cap > 0.0f) {
        const float share = tanhf(logit / shaping.cap);
        g *= 1.0f - share * share;
      }
      x.at[i] = narrow<T>(g / shaping.divisor);
    }
    store(of_row + at, x);
  }
}

#define NEAP_LOGITS(name, T, N)                                                                    \
  extern "C" __global__ void values_##name(                                                        \
      const T* logits, long long stride, const long long* targets, float* log_probs,               \
      float* log_sums, float* entropies, float* rights, long long columns, float cap,              \
      float divisor) {                                                                             \
    values<T, N>(logits, stride, targets, log_probs, log_sums, entropies, rights, columns,         \
                 {cap, divisor});                                                                  \
  }                                                                                                \
  extern "C" __global__ void gradient_##name(                                                      \
      T* logits, long long stride, const long long* targets, const float* log_sums,                \
      const float* d_log_probs, const float* entropies, const float* d_entropies,                  \
      long long columns, float cap, float divisor) {                                               \
    gradient<T, N>(logits, stride, targets, log_sums, d_log_probs, entropies, d_entropies,         \
                   columns, {cap, divisor});                                                       \
  }
NEAP_KERNELS_OF_TYPES(NEAP_LOGITS)
