// Logits of one row as the sampler reads them, and sums over a block of threads.

#include "kernels/sampler_sizes.h"

using namespace neap::kernels::sampler;

constexpr int kOfThread = 8;  // adjacent logits
constexpr unsigned kAll = 0xffffffffu;
constexpr float kLog2E = 1.44269504088896340736f;
#define kInfinity __int_as_float(0x7f800000)
constexpr float kOne = 17592186044416.0f;  // 2^44: the sum of 2^19 masses is below 2^64

using Mass = unsigned long long;

// ---- logits as integers of the same order ----

__device__ inline unsigned key_of(Bf16 x) {
  const unsigned bits = x.bits == 0x8000u ? 0u : x.bits;  // -0 is 0
  if ((bits & 0x7fffu) > 0x7f80u) return 0;               // NaN
  return (bits & 0x8000u) != 0 ? ~bits & 0xffffu : bits | 0x8000u;
}
__device__ inline unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x) == 0x80000000u ? 0u : __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
template <class T>
__device__ inline float logit_of(unsigned key);
template <>
__device__ inline float logit_of<Bf16>(unsigned key) {
  const unsigned bits = (key & 0x8000u) != 0 ? key & 0x7fffu : ~key & 0xffffu;
  return __uint_as_float(bits << 16);
}
template <>
__device__ inline float logit_of<float>(unsigned key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
/// The larger one has the larger logit, or the smaller index.
__device__ inline Mass ranked(unsigned key, long long index) {
  return static_cast<Mass>(key) << 32 | (kAll - static_cast<unsigned>(index));
}
__device__ inline long long index_of(Mass ranked) {
  return kAll - static_cast<unsigned>(ranked);
}

/// exp(z - top); 1 for the largest, even if it is infinite.
__device__ inline float above(float z, float top) {
  return z == top ? 1.0f : expf(z - top);
}
/// Faster. Its rounding matters little in a sum.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline Mass mass_of(float share) {
  return share > 0.0f ? static_cast<Mass>(share * kOne) : 0;
}

// ---- a row ----

template <class T>
struct Row {
  const T* logits;
  long long columns;
  Shaping shaping;
};
/// Adjacent logits of a row.
template <class T>
struct Some {
  T at[kOfThread];
  int count;  // the rest are beyond the row's end, and -infinity
};
template <int N, class T>
__device__ inline Some<T> some(const Row<T>& row, long long first) {
  Some<T> out;
  const long long left = row.columns - first;
  out.count = left >= kOfThread ? kOfThread : left > 0 ? static_cast<int>(left) : 0;
#pragma unroll
  for (int i = 0; i < kOfThread; i += N) {
    Vector<T, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v.at[k] = narrow<T>(-kInfinity);
    if (i < out.count) v = load<N>(row.logits + first + i);
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[i + k] = v.at[k];
  }
  return out;
}
/// Calls visit(logit, its index) for each of a thread's.
template <class T, class Visit>
__device__ inline void each_of(const Some<T>& some, long long first, const Visit& visit) {
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (i < some.count) visit(some.at[i], first + i);
}

// ---- sums over a block ----

/// The largest of the block, for each thread.
__device__ inline Mass largest_of_block(Mass x) {
  __shared__ Mass of_warps[32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Mass other = __shfl_xor_sync(kAll, x, distance);
    if (other > x) x = other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w)
    if (of_warps[w] > x) x = of_warps[w];
  return x;
}
/// The sum of the block's numbers up to this thread's, itself included. kChoosers threads.
template <class X>
__device__ inline X sum_until(X x) {
  __shared__ X of_warps[kChoosers / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const X before = __shfl_up_sync(kAll, x, distance);
    if (lane >= distance) x += before;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = x;
  __syncthreads();
  if (warp == 0) {
    X sum = of_warps[lane];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const X before = __shfl_up_sync(kAll, sum, distance);
      if (lane >= distance) sum += before;
    }
    of_warps[lane] = sum;
  }
  __syncthreads();
  return warp > 0 ? x + of_warps[warp - 1] : x;
}

/// The largest of a row, from those of its parts, for each thread.
__device__ inline Mass best_of_row(const Mass* best, int parts) {
  const int part = static_cast<int>(threadIdx.x);
  return largest_of_block(part < parts ? best[part] : 0);
}
