// Orders a row's tokens from the most to the least likely by counting equal logits, without
// sorting.

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

/// A prefix of the order. `key` 0: the order ended before.
struct Reached {
  Mass mass;       // of these tokens
  unsigned count;  // of them
  unsigned key;    // of the last
  unsigned place;  // of the last among equal keys
};

/// The order of a row's tokens, for all threads of its block. Each thread has one value of the
/// window.
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

  /// The shortest prefix that reaches the mass, which is not 0, or the number of tokens; else all
  /// tokens with at least `least` of the largest probability.
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

  /// Adds the occurrences of a key of the current window in each part to the block's `counts`
  /// (parts).
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
  /// The result if this thread's value has the last token.
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
