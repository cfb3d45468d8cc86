// Draws the next token of each row of logits. A row's result depends only on that row: its parts
// have a fixed size, and sums over blocks have a fixed order or are integers.
//
// Kernels, one after another: `parts` reads each part of a row. `windows` counts its largest logits
// by value if tokens must be sorted. `draw` or `draw_in_order` chooses the token from these numbers
// and one part.
//
// Sorted tokens: bfloat16 has few values, so equal logits are counted. A rank is then a value and a
// place among equal ones. A window has kWindow consecutive values, from the largest down. The token
// is nearly always in the first window; otherwise the row's block counts further ones.
//
// A logit's mass is exp(logit - the largest) as an integer, kOne for the largest. NaN has no mass, and a row with NaN has
// log-probabilities of NaN.

#include "sampler_rows.cuh"
#include "sampler_order.cuh"

// ---- parts ----

/// For each part (blockIdx.y) of a row (blockIdx.x): its largest logit, ranked, and the sum of
/// exp(logit - the largest). sums null: not computed.
template <class T, int N>
__device__ inline void parts(const T* logits, long long stride, Mass* best, float* sums,
                             long long columns, Shaping shaping) {
  constexpr int kTurns = kPart / (kReaders * kOfThread);
  const Row<T> row{logits + blockIdx.x * stride, columns, shaping};
  const long long at = static_cast<long long>(blockIdx.x) * gridDim.y + blockIdx.y;
  const long long part = static_cast<long long>(blockIdx.y) * kPart;
  const auto first = [&](int turn) {
    return part + (static_cast<long long>(turn) * kReaders + threadIdx.x) * kOfThread;
  };
  float mine[kTurns][kOfThread];
  int counts[kTurns];
  float largest = -kInfinity;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const Some<T> these = some<N>(row, first(turn));
    counts[turn] = these.count;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      mine[turn][i] = widen(these.at[i]);
      largest = fmaxf(largest, mine[turn][i]);  // not NaN
    }
  }
  __shared__ float of_warps[2][kReaders / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float top = largest;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    top = fmaxf(top, __shfl_xor_sync(kAll, top, distance));
  if (lane == 0) of_warps[0][warp] = top;
  __shared__ unsigned place;  // of the first one in the part
  if (threadIdx.x == 0) place = kPart;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kReaders / 32; ++w) top = fmaxf(top, of_warps[0][w]);
  if (largest == top) {
    long long index = part + kPart;
#pragma unroll
    for (int turn = kTurns - 1; turn >= 0; --turn)
#pragma unroll
      for (int i = kOfThread - 1; i >= 0; --i)
        if (mine[turn][i] == top) index = first(turn) + i;
    atomicMin(&place, static_cast<unsigned>(index - part));
  }
  float sum = 0.0f;
  if (sums != nullptr) {
    float of_top = capped(top, shaping);
    if (!(fabsf(of_top) < kInfinity)) of_top = 0.0f;  // infinite ones have no difference
    const float scale = kLog2E / shaping.divisor;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
#pragma unroll
      for (int i = 0; i < kOfThread; ++i)
        if (i < counts[turn])
          sum += power_of_2((capped(mine[turn][i], shaping) - of_top) * scale);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      sum += __shfl_down_sync(kAll, sum, distance);
    if (lane == 0) of_warps[1][warp] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const bool found = place < kPart && part + place < columns;  // else all are NaN
  best[at] = ranked(key_of(narrow<T>(top)), found ? part + place : part);
  if (sums == nullptr) return;
  for (int w = 1; w < kReaders / 32; ++w) sum += of_warps[1][w];
  sums[at] = sum;
}

// ---- the token ----

/// The sums of a row's parts.
struct Whole {
  Mass best;              // ranked
  float top;              // the largest logit
  float sum;              // of exp(logit - top)
  float until[kMostParts];  // the sum up to a part, itself included
};
template <class T>
__device__ inline void put_together(Whole& whole, const Mass* best, const float* sums, int parts,
                                    const Shaping& shaping) {
  if (threadIdx.x < 32) {
    const auto logit = [&](Mass ranked) {
      return shaped(logit_of<T>(static_cast<unsigned>(ranked >> 32)), shaping);
    };
    Mass of_row = 0;
    for (int part = static_cast<int>(threadIdx.x); part < parts; part += 32)
      if (best[part] > of_row) of_row = best[part];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const Mass other = __shfl_xor_sync(kAll, of_row, distance);
      if (other > of_row) of_row = other;
    }
    const float top = logit(of_row);
    for (int part = static_cast<int>(threadIdx.x); part < kMostParts; part += 32)
      whole.until[part] =
          part < parts && sums != nullptr ? sums[part] * above(logit(best[part]), top) : 0.0f;
    __syncwarp();
    if (threadIdx.x == 0) {
      whole.best = of_row;
      whole.top = top;
      float sum = 0.0f;
      for (int some = 0; some < parts; some += kOfThread) {
        float shares[kOfThread];
#pragma unroll
        for (int i = 0; i < kOfThread; ++i) shares[i] = whole.until[some + i];
#pragma unroll
        for (int i = 0; i < kOfThread; ++i) whole.until[some + i] = sum += shares[i];
      }
      whole.sum = sum;
    }
  }
  __syncthreads();
}

/// Writes the token and its log-probability. One thread calls it.
template <class T>
__device__ inline void put(const Row<T>& row, const Whole& whole, long long token,
                           long long* tokens, float* log_probs) {
  tokens[blockIdx.x] = token;
  if (log_probs == nullptr) return;
  const float chosen = shaped(widen(row.logits[token]), row.shaping);
  log_probs[blockIdx.x] = chosen - (logf(whole.sum) + whole.top);
}

/// Draws the token at a fraction of the row's mass, in the vocabulary's order; uniforms null: the
/// most likely token. A block draws one row.
template <class T, int N>
__device__ inline void draw(const T* logits, long long stride, const Mass* best, const float* sums,
                            const float* uniforms, long long* tokens, float* log_probs,
                            long long columns, int parts, Shaping shaping) {
  __shared__ Whole whole;
  __shared__ long long token;
  __shared__ Mass of_part;
  const Row<T> row{logits + blockIdx.x * stride, columns, shaping};
  const long long place = static_cast<long long>(blockIdx.x) * parts;
  put_together<T>(whole, best + place, sums != nullptr ? sums + place : nullptr, parts, shaping);
  if (uniforms == nullptr) {
    if (threadIdx.x == 0) put(row, whole, index_of(whole.best), tokens, log_probs);
    return;
  }
  // A number below 1 may be rounded up to the whole.
  const float target =
      fminf(uniforms[blockIdx.x] * whole.sum, __uint_as_float(__float_as_uint(whole.sum) - 1));
  const bool before = static_cast<int>(threadIdx.x) < parts && !(whole.until[threadIdx.x] > target);
  const int part = __syncthreads_count(before ? 1 : 0);
  if (part == parts) {  // the sum is NaN
    if (threadIdx.x == 0) put(row, whole, index_of(whole.best), tokens, log_probs);
    return;
  }
  const long long first =
      static_cast<long long>(part) * kPart + static_cast<long long>(threadIdx.x) * kOfThread;
  const Some<T> mine = some<N>(row, first);
  Mass masses[kOfThread] = {};
  Mass of_thread = 0;
  each_of(mine, first, [&](T x, long long index) {
    of_thread += masses[index - first] = mass_of(above(shaped(widen(x), shaping), whole.top));
  });
  Mass until = sum_until<Mass>(of_thread);
  if (threadIdx.x == 0) token = index_of(best[place + part]);
  if (threadIdx.x == kChoosers - 1) of_part = until;
  __syncthreads();
  Mass wanted = mass_of(part > 0 ? target - whole.until[part - 1] : target) + 1;
  if (wanted > of_part) wanted = of_part;  // of rounded numbers
  if (until >= wanted && until - of_thread < wanted) {
    until -= of_thread;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if (until < wanted && until + masses[i] >= wanted) token = first + i;
      until += masses[i];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) put(row, whole, token, tokens, log_probs);
}

/// Which tokens may be drawn, as step::SamplingOptions.
struct Kept {
  double top_p;    // 1: all
  unsigned top_k;  // 0: all
  float min_p;     // 0: all
};

/// Draws the token at which the sorted tokens reach a fraction of the kept tokens' mass. Equal
/// tokens are in the vocabulary's order.
template <int N>
__device__ inline Reached drawn(Order<N>& order, const Kept& kept, const Whole& whole,
                                float uniform) {
  Reached all{mass_of(whole.sum), kAll, 0, 0};
  if (kept.top_k > 0 || kept.min_p > 0.0f)
    all = order.reach(~Mass{0}, kept.top_k > 0 ? kept.top_k : kAll);
  if (kept.top_p < 1.0) {
    const double wanted = ceil(kept.top_p * static_cast<double>(all.mass));
    all = order.reach(wanted >= 1.0 ? static_cast<Mass>(wanted) : 1, all.count);
  }
  const double target = static_cast<double>(uniform) * static_cast<double>(all.mass);
  return order.reach(static_cast<Mass>(target) + 1, all.count);
}

template <int N>
__device__ inline void draw_in_order(const Bf16* logits, long long stride, const Mass* best,
                                     const float* sums, const unsigned short* counts,
                                     const float* uniforms, long long* tokens, float* log_probs,
                                     long long columns, int parts, Shaping shaping, Kept kept) {
  __shared__ Whole whole;
  __shared__ unsigned of_parts[kMostParts];
  const Row<Bf16> row{logits + blockIdx.x * stride, columns, shaping};
  const long long place = static_cast<long long>(blockIdx.x) * parts;
  put_together<Bf16>(whole, best + place, sums + place, parts, shaping);
  const unsigned top = static_cast<unsigned>(whole.best >> 32);
  Order<N> order(row, counts + place * kWindow, parts, top, kept.min_p);
  const Reached chosen = drawn(order, kept, whole, uniforms[blockIdx.x]);
  if (chosen.key == 0) {  // all logits are NaN
    if (threadIdx.x == 0) put(row, whole, index_of(whole.best), tokens, log_probs);
    return;
  }
  order.count_in_parts(chosen.key, of_parts);
  int part = 0;
  unsigned left = chosen.place;  // equal keys before it
  while (part + 1 < parts && left >= of_parts[part]) left -= of_parts[part++];
  const long long first =
      static_cast<long long>(part) * kPart + static_cast<long long>(threadIdx.x) * kOfThread;
  const Some<Bf16> mine = some<N>(row, first);
  unsigned equals = 0;
  each_of(mine, first, [&](Bf16 x, long long) { equals += key_of(x) == chosen.key ? 1u : 0u; });
  unsigned before = sum_until<unsigned>(equals) - equals;
  each_of(mine, first, [&](Bf16 x, long long index) {
    if (key_of(x) != chosen.key) return;
    if (before++ == left) put(row, whole, index, tokens, log_probs);
  });
}

#define NEAP_SAMPLER(name, T, N)                                                                   \
  extern "C" __global__ void __launch_bounds__(kReaders)                                           \
      parts_##name(const T* logits, long long stride, Mass* best, float* sums, long long columns,  \
                   float cap, float divisor) {                                                     \
    parts<T, N>(logits, stride, best, sums, columns, {cap, divisor});                              \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kChoosers)                                          \
      draw_##name(const T* logits, long long stride, const Mass* best, const float* sums,          \
                  const float* uniforms, long long* tokens, float* log_probs, long long columns,   \
                  int parts, float cap, float divisor) {                                           \
    draw<T, N>(logits, stride, best, sums, uniforms, tokens, log_probs, columns, parts,            \
               {cap, divisor});                                                                    \
  }
NEAP_KERNELS_OF_TYPES(NEAP_SAMPLER)

#define NEAP_SAMPLER_IN_ORDER(name, N)                                                             \
  extern "C" __global__ void __launch_bounds__(kReaders)                                           \
      windows_##name(const Bf16* logits, long long stride, const Mass* best,                       \
                     unsigned short* counts, long long columns) {                                  \
    windows<N>(logits, stride, best, counts, columns);                                             \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kChoosers) draw_in_order_##name(                    \
      const Bf16* logits, long long stride, const Mass* best, const float* sums,                   \
      const unsigned short* counts, const float* uniforms, long long* tokens, float* log_probs,    \
      long long columns, int parts, float cap, float divisor, Kept kept) {                         \
    draw_in_order<N>(logits, stride, best, sums, counts, uniforms, tokens, log_probs, columns,     \
                     parts, {cap, divisor}, kept);                                                 \
  }
NEAP_SAMPLER_IN_ORDER(bf16_vector, 8)
NEAP_SAMPLER_IN_ORDER(bf16_single, 1)
