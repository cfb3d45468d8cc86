// Draws the next token of each row of logits. A row's result depends on that row alone: its parts have a fixed size, and
// what several blocks add up is added in a fixed order or in integers.
//
// Kernels, one after another: `parts` reads each part of a row. `windows` counts its largest logits by value if the tokens
// have to be in order. `draw` or `draw_in_order` chooses the token from these numbers and one part.
//
// Tokens in order: bfloat16 has few values, so equal logits are counted, and a rank among the counts is a value and a
// place among its equals. A window has the kWindow values from a largest one down. The token is nearly always in the
// first; otherwise the row's block makes further windows.
//
// A logit's mass is exp(logit - the largest) as an integer, kOne for the largest. NaN has no mass, and a row with NaN has
// log-probabilities of NaN.

constexpr int kPart = 8192;  // logits
constexpr int kReaders = 256, kChoosers = 1024;
constexpr int kOfThread = 8;  // neighbours
constexpr int kWindow = 1024;
constexpr int kMostParts = 64;
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

/// exp(z - top), and 1 of the largest although it is infinite.
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
/// Neighbours of a row.
template <class T>
struct Some {
  T at[kOfThread];
  int count;  // the rest lie behind the row's end, and are -infinity
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

// ---- parts ----

/// Each part (blockIdx.y) of a row (blockIdx.x): its largest logit, ranked, and the sum of exp(logit - the largest).
/// sums null: not wanted.
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

/// The largest of a row, from those of its parts, for each thread.
__device__ inline Mass best_of_row(const Mass* best, int parts) {
  const int part = static_cast<int>(threadIdx.x);
  return largest_of_block(part < parts ? best[part] : 0);
}

// ---- windows ----

/// Counts in each part how often each value of the row's first window occurs: counts (rows, parts, kWindow).
template <int N>
__device__ inline void windows(const Bf16* logits, long long stride, const Mass* best,
                               unsigned short* counts, long long columns) {
  __shared__ unsigned bins[kWindow];
  const Row<Bf16> row{logits + blockIdx.x * stride, columns, {}};
  const long long rows_part = static_cast<long long>(blockIdx.x) * gridDim.y;
  for (int bin = static_cast<int>(threadIdx.x); bin < kWindow; bin += kReaders) bins[bin] = 0;
  const Mass top = best_of_row(best + rows_part, static_cast<int>(gridDim.y));
  const unsigned start = static_cast<unsigned>(top >> 32);
#pragma unroll
  for (int turn = 0; turn < kPart / (kReaders * kOfThread); ++turn) {
    const long long first = static_cast<long long>(blockIdx.y) * kPart +
                            (static_cast<long long>(turn) * kReaders + threadIdx.x) * kOfThread;
    each_of(some<N>(row, first), first, [&](Bf16 x, long long) {
      const unsigned key = key_of(x);
      if (key != 0 && start - key < kWindow) atomicAdd(&bins[start - key], 1u);
    });
  }
  __syncthreads();
  constexpr int kBins = kWindow / kReaders;
  Vector<unsigned short, kBins> out;
#pragma unroll
  for (int i = 0; i < kBins; ++i)
    out.at[i] = static_cast<unsigned short>(bins[threadIdx.x * kBins + i]);
  store(counts + (rows_part + blockIdx.y) * kWindow + threadIdx.x * kBins, out);
}

/// The first tokens of the order. `key` 0: the order has ended before.
struct Reached {
  Mass mass;       // of these tokens
  unsigned count;  // of them
  unsigned key;    // of the last
  unsigned place;  // of it among its equals
};

/// The tokens of a row from the most likely to the least, for all threads of its block. A thread has a value of the window.
template <int N>
class Order {
 public:
  __device__ Order(const Row<Bf16>& row, const unsigned short* counts, int parts, unsigned top,
                   float least)
      : row_(row),
        counts_(counts),
        parts_(parts),
        top_(top),
        of_top_(shaped(logit_of<Bf16>(top), row.shaping)),
        least_(least) {
    load_first();
  }

  /// As many tokens as reach the mass, which is not 0, or the number, or all that have `least` of the largest's.
  __device__ Reached reach(Mass mass, unsigned number) {
    __shared__ Reached reached;
    if (number == 0) return {};
    if (start_ != top_) load_first();
    for (;;) {
      const bool before = mass_until_ < mass && count_until_ < number;
      const unsigned hit = static_cast<unsigned>(__syncthreads_count(before ? 1 : 0));
      if (threadIdx.x == hit) reached = last(mass, number);
      if (hit == kWindow && threadIdx.x == kWindow - 1)
        reached = {mass_until_, count_until_, 0, 0};
      __syncthreads();
      const Reached out = reached;
      __syncthreads();
      if (hit < kWindow) return out;
      const unsigned next = next_key();
      const float share = next != 0 ? share_of(next) : 0.0f;
      if (mass_of(share) == 0 || share < least_) return out;
      load_next(next, out);
    }
  }

  /// Adds to `counts` (parts) of the block how often a key of the present window occurs in each part.
  __device__ void count_in_parts(unsigned key, unsigned* counts) const {
    const int part = static_cast<int>(threadIdx.x);
    if (start_ == top_) {
      if (part < parts_) counts[part] = counts_[part * kWindow + (top_ - key)];
    } else {
      if (part < parts_) counts[part] = 0;
      __syncthreads();
      for_each([&](unsigned one, long long index) {
        if (one == key) atomicAdd(&counts[index / kPart], 1u);
      });
    }
    __syncthreads();
  }

 private:
  __device__ float share_of(unsigned key) const {
    return above(shaped(logit_of<Bf16>(key), row_.shaping), of_top_);
  }
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    for (long long first = static_cast<long long>(threadIdx.x) * kOfThread; first < row_.columns;
         first += kChoosers * kOfThread)
      each_of(some<N>(row_, first), first, [&](Bf16 x, long long index) { visit(key_of(x), index); });
  }
  __device__ void load_first() {
    start_ = top_;
    unsigned count = 0;
    for (int part = 0; part < parts_; ++part) count += counts_[part * kWindow + threadIdx.x];
    add_up(count, 0, 0);
  }
  /// The largest key below the window; 0: none.
  __device__ unsigned next_key() const {
    unsigned below = 0;
    if (start_ < kWindow) return below;
    for_each([&](unsigned key, long long) {
      if (key + kWindow <= start_ && key > below) below = key;
    });
    return static_cast<unsigned>(largest_of_block(below));
  }
  __device__ void load_next(unsigned start, const Reached& before) {
    __shared__ unsigned bins[kWindow];
    start_ = start;
    bins[threadIdx.x] = 0;
    __syncthreads();
    for_each([&](unsigned key, long long) {
      if (key != 0 && start - key < kWindow) atomicAdd(&bins[start - key], 1u);
    });
    __syncthreads();
    add_up(bins[threadIdx.x], before.mass, before.count);
  }
  __device__ void add_up(unsigned count, Mass mass_before, unsigned count_before) {
    const float share = start_ > threadIdx.x ? share_of(start_ - threadIdx.x) : 0.0f;
    each_ = mass_of(share);
    count_ = share >= least_ ? count : 0;
    mass_until_ = mass_before + sum_until<Mass>(each_ * count_);
    count_until_ = count_before + sum_until<unsigned>(count_);
  }
  /// This thread's value has the last token.
  __device__ Reached last(Mass mass, unsigned number) const {
    const Mass mass_before = mass_until_ - each_ * count_;
    const unsigned count_before = count_until_ - count_;
    unsigned more = kAll;
    if (mass_until_ >= mass) more = static_cast<unsigned>((mass - mass_before + each_ - 1) / each_);
    if (count_until_ >= number && number - count_before < more) more = number - count_before;
    return {mass_before + more * each_, count_before + more, start_ - threadIdx.x, more - 1};
  }

  const Row<Bf16> row_;
  const unsigned short* counts_;  // (parts, kWindow) of the first window
  int parts_;
  unsigned top_;
  float of_top_, least_;
  unsigned start_ = 0;  // of the window
  Mass each_ = 0, mass_until_ = 0;
  unsigned count_ = 0, count_until_ = 0;
};

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

/// The token at a share of the row's mass, in the vocabulary's order; uniforms null: the largest. A block draws a row.
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

/// The last token of the order's first ones that reach a share of the kept tokens' mass. Equal tokens are in the
/// vocabulary's order.
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
  if (chosen.key == 0) {  // no logit counts: all are NaN
    if (threadIdx.x == 0) put(row, whole, index_of(whole.best), tokens, log_probs);
    return;
  }
  order.count_in_parts(chosen.key, of_parts);
  int part = 0;
  unsigned left = chosen.place;  // equals in front of it
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
