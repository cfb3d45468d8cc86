// Decoding of one new token per sequence: stores its key and value in the cache, and attends to the
// cached keys. A block has one head of a row and a share of the keys; L lanes read a key together.
#include "eight.cuh"
#include "new_heads.cuh"

constexpr unsigned kAll = 0xffffffffu;
constexpr int kAtOnce = 4;  // keys of a lane in flight
constexpr float kLowest = -1e30f;

__device__ inline void spread(float (&to)[kOfLane], const Eight& from) {
#pragma unroll
  for (int i = 0; i < kOfLane / 2; ++i) {
    to[2 * i] = __uint_as_float(from.pairs[i] << 16);
    to[2 * i + 1] = __uint_as_float(from.pairs[i] & 0xffff0000u);
  }
}

/// A weighted sum of values; weights are relative to the largest score.
struct Seen {
  float largest = kLowest, weight = 0;
  float sum[kOfLane] = {};
};

/// Adds N keys and values of each lane, if they are valid.
template <int L, int N>
__device__ inline void see(Seen& seen, const float* query, const float (&keys)[N][kOfLane],
                           const float (&values)[N][kOfLane], const bool (&counts)[N]) {
  float score[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    score[n] = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) score[n] += query[i] * keys[n][i];
  }
#pragma unroll
  for (int distance = L / 2; distance > 0; distance /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) score[n] += __shfl_xor_sync(kAll, score[n], distance);
  float largest = seen.largest;
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (counts[n]) largest = fmaxf(largest, score[n]);
  const float keep = exp2f(seen.largest - largest);
  seen.largest = largest;
  seen.weight *= keep;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) seen.sum[i] *= keep;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float weight = counts[n] ? exp2f(score[n] - largest) : 0.0f;
    seen.weight += weight;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) seen.sum[i] += weight * values[n][i];
  }
}

template <int L, int WARPS>
__device__ inline void attend(Bf16* out, float* parts, Bf16* keys, Bf16* values, const Bf16* q,
                              const Bf16* k, const Bf16* v, const Bf16* q_bias, const Bf16* k_bias,
                              const Bf16* v_bias, const Bf16* q_norm, const Bf16* k_norm,
                              const long long* positions, const float* frequencies,
                              const Attend& by) {
  constexpr int kThreads = 32 * WARPS;
  constexpr int kSlots = kThreads / L;  // keys that the block reads at once
  constexpr int kMostWidth = kOfLane * L;
  __shared__ float query[kMostWidth], new_key[kMostWidth], new_value[kMostWidth];
  __shared__ float sums[WARPS][kMostWidth], largest_of[WARPS], weights[WARPS];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int column = lane % L * kOfLane;
  const bool inside = column < by.width;
  const int slot = thread / L;
  const long long row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int of_key = by.heads / by.key_heads;  // heads that share keys
  const int key_head = head / of_key;
  Bf16* const row_keys = keys + row * by.strides.keys_row + key_head * by.strides.keys_head;
  Bf16* const row_values = values + row * by.strides.values_row + key_head * by.strides.values_head;
  let_next_start();
  const int position = static_cast<int>(positions[row]);
  const int share = static_cast<int>(blockIdx.z) * by.share;
  const int begin = max(share, by.window > 0 ? position - by.window + 1 : 0);
  const int end = min(share + by.share, position);  // of those that are in the cache
  const bool has_new = position >= share && position < share + by.share;

  Eight read_keys[kAtOnce], read_values[kAtOnce];
  const auto fetch = [&](int base) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int key = base + n * kSlots + slot;
      const bool reads = inside && key < end;
      const long long at = static_cast<long long>(key) * by.width + column;
      read_keys[n] = reads ? *reinterpret_cast<const Eight*>(row_keys + at) : Eight{};
      read_values[n] = reads ? *reinterpret_cast<const Eight*>(row_values + at) : Eight{};
    }
  };
  fetch(begin);
  for (const Bf16* norm : {q_norm, k_norm})
    if (norm != nullptr && kOfLane * thread < by.width) fetch_ahead(norm + kOfLane * thread);
  wait_for_previous();

  NewHead<Bf16> of_query{q + row * by.strides.q_row + head * by.strides.q_head,
                         q_bias == nullptr ? nullptr : q_bias + head * by.width, q_norm,
                         by.norms.offset};
  NewHead<Bf16> of_new_key{k + row * by.strides.k_row + key_head * by.strides.k_head,
                           k_bias == nullptr ? nullptr : k_bias + key_head * by.width, k_norm,
                           by.norms.offset};
  of_query.measure(by.width, by.norms.eps);
  if (has_new) of_new_key.measure(by.width, by.norms.eps);
  const bool stores = has_new && head % of_key == 0;
  const long long place = static_cast<long long>(position) * by.width;
  const int turned = by.width - by.half;  // rotated pairs, and columns that are not rotated
  const int items = has_new ? 2 * turned + by.width : turned;
  for (int item = thread; item < items; item += kThreads) {
    if (item >= 2 * turned) {
      const int i = item - 2 * turned;
      const Bf16* const bias = v_bias == nullptr ? nullptr : v_bias + key_head * by.width;
      new_value[i] = biased(v + row * by.strides.v_row + key_head * by.strides.v_head, bias, i);
      if (stores) row_values[place + i] = narrow<Bf16>(new_value[i]);
      continue;
    }
    const bool is_key = item >= turned;
    const int i = is_key ? item - turned : item;
    const NewHead<Bf16> of{is_key ? of_new_key.from : of_query.from,
                           is_key ? of_new_key.bias : of_query.bias,
                           is_key ? of_new_key.norm : of_query.norm, by.norms.offset,
                           is_key ? of_new_key.scale : of_query.scale};
    const auto put = [&](int at, float x) {
      const Bf16 rounded = narrow<Bf16>(x);
      if (!is_key) {
        query[at] = widen(rounded) * by.scale;
        return;
      }
      new_key[at] = widen(rounded);
      if (stores) row_keys[place + at] = rounded;
    };
    if (i >= by.half) {
      put(by.half + i, of.at(by.half + i));
      continue;
    }
    const Turn turn = turn_of<Bf16>(position, frequencies[i], by.factor);
    const float a = of.at(i);
    const float b = of.at(by.half + i);
    put(i, a * turn.cosine - b * turn.sine);
    put(by.half + i, b * turn.cosine + a * turn.sine);
  }
  for (int i = by.width + thread; i < kMostWidth; i += kThreads) query[i] = 0;
  __syncthreads();

  Seen seen;
  float mine[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) mine[i] = query[column + i];
  for (int base = begin; base < end; base += kSlots * kAtOnce) {
    float x[kAtOnce][kOfLane], y[kAtOnce][kOfLane];
    bool counts[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      spread(x[n], read_keys[n]);
      spread(y[n], read_values[n]);
      counts[n] = base + n * kSlots + slot < end;
    }
    fetch(base + kSlots * kAtOnce);
    see<L, kAtOnce>(seen, mine, x, y, counts);
  }
  if (has_new && warp == 0) {
    float x[1][kOfLane], y[1][kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      x[0][i] = inside ? new_key[column + i] : 0.0f;
      y[0][i] = inside ? new_value[column + i] : 0.0f;
    }
    const bool counts[1] = {slot == 0};
    see<L, 1>(seen, mine, x, y, counts);
  }
  // Combines the sums of a warp's keys, then of all warps, in thread order.
#pragma unroll
  for (int distance = L; distance < 32; distance *= 2) {
    const float theirs = __shfl_xor_sync(kAll, seen.largest, distance);
    const float largest = fmaxf(seen.largest, theirs);
    const float keep = exp2f(seen.largest - largest);
    const float take = exp2f(theirs - largest);
    seen.largest = largest;
    seen.weight = seen.weight * keep + __shfl_xor_sync(kAll, seen.weight, distance) * take;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      seen.sum[i] = seen.sum[i] * keep + __shfl_xor_sync(kAll, seen.sum[i], distance) * take;
  }
  if (lane < L) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) sums[warp][column + i] = seen.sum[i];
    if (lane == 0) {
      largest_of[warp] = seen.largest;
      weights[warp] = seen.weight;
    }
  }
  __syncthreads();
  const long long of_row = row * by.heads + head;
  for (int i = thread; i < by.width; i += kThreads) {
    float largest = kLowest, weight = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, largest_of[w]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float take = exp2f(largest_of[w] - largest);
      weight += weights[w] * take;
      sum += sums[w][i] * take;
    }
    if (gridDim.z == 1) {
      out[of_row * by.width + i] = narrow<Bf16>(sum / weight);
      continue;
    }
    float* const part = parts + (of_row * gridDim.z + blockIdx.z) * (by.width + 2);
    part[2 + i] = sum;
    if (i == 0) {
      part[0] = largest;
      part[1] = weight;
    }
  }
}

/// Combines the sums of a head's key shares to its result.
extern "C" __global__ void merge_shares(Bf16* out, const float* parts, int width, int shares) {
  let_next_start();
  wait_for_previous();
  const float* const from = parts + static_cast<long long>(blockIdx.x) * shares * (width + 2);
  float largest = kLowest;
  for (int s = 0; s < shares; ++s) largest = fmaxf(largest, from[s * (width + 2)]);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    float weight = 0, sum = 0;
    for (int s = 0; s < shares; ++s) {
      const float* const part = from + s * (width + 2);
      const float take = exp2f(part[0] - largest);
      weight += part[1] * take;
      sum += part[2 + i] * take;
    }
    out[static_cast<long long>(blockIdx.x) * width + i] = narrow<Bf16>(sum / weight);
  }
}

#define NEAP_ATTEND(L, WARPS)                                                              \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, 20 / WARPS)                     \
      attend_##L##_##WARPS(                                                                \
      Bf16* out, float* parts, Bf16* keys, Bf16* values, const Bf16* q, const Bf16* k,     \
      const Bf16* v, const Bf16* q_bias, const Bf16* k_bias, const Bf16* v_bias,           \
      const Bf16* q_norm, const Bf16* k_norm, const long long* positions,                  \
      const float* frequencies, Attend by) {                                               \
    attend<L, WARPS>(out, parts, keys, values, q, k, v, q_bias, k_bias, v_bias, q_norm,    \
                     k_norm, positions, frequencies, by);                                  \
  }
NEAP_ATTEND(8, 4)
NEAP_ATTEND(8, 8)
NEAP_ATTEND(16, 4)
NEAP_ATTEND(16, 8)
NEAP_ATTEND(32, 4)
NEAP_ATTEND(32, 8)
