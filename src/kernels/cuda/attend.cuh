// Decoding of one new token per sequence: stores its key and value in the cache, and attends to the
// cached keys. A block has up to G heads of a row that share keys, and a share of these keys; L lanes
// read a key together. A head's bits do not depend on G, nor on whether the cache is paged (kPaged).
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

/// Scores of N keys of each lane.
template <int L, int N>
__device__ inline void score_keys(float (&score)[N], const float* query, const Eight (&keys)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float key[kOfLane];
    spread(key, keys[n]);
    score[n] = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) score[n] += query[i] * key[i];
  }
#pragma unroll
  for (int distance = L / 2; distance > 0; distance /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) score[n] += __shfl_xor_sync(kAll, score[n], distance);
}

/// Adds N values of each lane, if they are valid.
template <int N>
__device__ inline void see(Seen& seen, const float (&score)[N], const Eight (&values)[N],
                           const bool (&counts)[N]) {
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
    float value[kOfLane];
    spread(value, values[n]);
    seen.weight += weight;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) seen.sum[i] += weight * value[i];
  }
}

template <int L, int WARPS, int G>
__device__ inline void attend(Bf16* out, float* parts, Bf16* keys, Bf16* values,
                              const long long* table, const Bf16* q, const Bf16* k, const Bf16* v, const Bf16* q_bias, const Bf16* k_bias,
                              const Bf16* v_bias, const Bf16* q_norm, const Bf16* k_norm,
                              const long long* positions, const float* frequencies,
                              const Attend& by) {
  constexpr int kThreads = 32 * WARPS;
  constexpr int kSlots = kThreads / L;  // keys that the block reads at once
  constexpr int kMostWidth = kOfLane * L;
  constexpr int kKeys = kSlots * kAtOnce;  // that the block has in flight: a part of a page, or pages
  constexpr int kPages = kKeys > kPageTokens ? kKeys / kPageTokens : 1;
  __shared__ float query[G][kMostWidth];
  __shared__ float scales[G + 1];  // 1 / rms of the new heads
  __shared__ Eight new_key[L], new_value[L];
  __shared__ float sums[G][WARPS][kMostWidth], largest_of[G][WARPS], weights[G][WARPS];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int column = lane % L * kOfLane;
  const bool inside = column < by.width;
  const int slot = thread / L;
  const long long row = blockIdx.x;
  const int of_key = by.heads / by.key_heads;       // heads that share keys
  const int blocks = (of_key + G - 1) / G;          // that have these heads
  const int of_block = (of_key + blocks - 1) / blocks;
  const int key_head = static_cast<int>(blockIdx.y) / blocks;
  const int first_of_key = static_cast<int>(blockIdx.y) % blocks * of_block;
  const int first_head = key_head * of_key + first_of_key;
  const int heads = min(of_block, of_key - first_of_key);
  const long long from = kPaged ? 0 : row;
  Bf16* const row_keys = keys + from * by.strides.keys_row + key_head * by.strides.keys_head;
  Bf16* const row_values =
      values + from * by.strides.values_row + key_head * by.strides.values_head;
  const long long* const pages = kPaged ? table + row * by.pages : nullptr;
  // The first column of a key, in a page that begins at row `first` of the cache.
  const auto place_of = [&](int key, int first) {
    return static_cast<long long>(kPaged ? first + key % kPageTokens : key) * by.width;
  };
  let_next_start();
  const int position = static_cast<int>(positions[row]);
  const int share = static_cast<int>(blockIdx.z) * by.share;
  const int begin = max(share, by.window > 0 ? position - by.window + 1 : 0);
  const int end = min(share + by.share, position);  // of those that are in the cache
  const bool has_new = position >= share && position < share + by.share;

  Eight read_keys[kAtOnce], read_values[kAtOnce];
  int next_pages[kPages] = {};  // of the keys that are fetched next
  const auto look_up = [&](int base) {
    if (!kPaged) return;
#pragma unroll
    for (int n = 0; n < kPages; ++n) {
      const int key = base + n * kPageTokens;
      next_pages[n] = key < end ? static_cast<int>(pages[key / kPageTokens]) : 0;
    }
  };
  const unsigned count = static_cast<unsigned>(max(end - begin, 0));
  const auto seen_at = [&](int key) { return static_cast<unsigned>(key - begin) < count; };
  const auto fetch = [&](int base) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int key = base + n * kSlots + slot;
      const bool reads = inside && seen_at(key);
      const long long at = place_of(key, next_pages[n * kSlots / kPageTokens]) + column;
      read_keys[n] = reads ? *reinterpret_cast<const Eight*>(row_keys + at) : Eight{};
      read_values[n] = reads ? *reinterpret_cast<const Eight*>(row_values + at) : Eight{};
    }
  };
  const int first = begin / kPageTokens * kPageTokens;
  look_up(first);
  fetch(first);
  look_up(first + kKeys);
  for (const Bf16* norm : {q_norm, k_norm})
    if (norm != nullptr && kOfLane * thread < by.width) fetch_ahead(norm + kOfLane * thread);
  const int turned = by.width - by.half;  // rotated pairs, and columns that are not rotated
  const int of_heads = (has_new ? heads + 1 : heads) * turned;  // of queries, and the new key
  const int items = of_heads + (has_new ? by.width : 0);
  const auto turn_at = [&](int i) {
    return i < by.half ? turn_of<Bf16>(position, frequencies[i], by.factor) : Turn{};
  };
  Turn turn = turn_at(thread % turned);
  wait_for_previous();

  const auto new_head = [&](int part) -> NewHead<Bf16> {
    if (part == heads)
      return {k + row * by.strides.k_row + key_head * by.strides.k_head,
              k_bias == nullptr ? nullptr : k_bias + key_head * by.width, k_norm, by.norms.offset};
    const int head = first_head + part;
    return {q + row * by.strides.q_row + head * by.strides.q_head,
            q_bias == nullptr ? nullptr : q_bias + head * by.width, q_norm, by.norms.offset};
  };
  if (q_norm != nullptr || k_norm != nullptr) {
    for (int part = warp; part <= heads; part += WARPS) {
      NewHead<Bf16> of = new_head(part);
      of.measure(by.width, by.norms.eps);
      if (lane == 0) scales[part] = of.scale;
    }
    __syncthreads();
  }
  const bool stores = has_new && first_of_key == 0;
  const long long place =
      place_of(position, kPaged && stores ? static_cast<int>(pages[position / kPageTokens]) : 0);
  Bf16* const key_at = reinterpret_cast<Bf16*>(new_key);
  Bf16* const value_at = reinterpret_cast<Bf16*>(new_value);
  for (int item = thread; item < items; item += kThreads) {
    if (item >= of_heads) {
      const int i = item - of_heads;
      const Bf16* const bias = v_bias == nullptr ? nullptr : v_bias + key_head * by.width;
      value_at[i] = narrow<Bf16>(
          biased(v + row * by.strides.v_row + key_head * by.strides.v_head, bias, i));
      if (stores) row_values[place + i] = value_at[i];
      continue;
    }
    const int part = item / turned, i = item % turned;
    NewHead<Bf16> of = new_head(part);
    if (of.norm != nullptr) of.scale = scales[part];
    const auto put = [&](int at, float x) {
      const Bf16 rounded = narrow<Bf16>(x);
      if (part < heads) {
        query[part][at] = widen(rounded) * by.scale;
        return;
      }
      key_at[at] = rounded;
      if (stores) row_keys[place + at] = rounded;
    };
    if (i >= by.half) {
      put(by.half + i, of.at(by.half + i));
      continue;
    }
    if (item != thread) turn = turn_at(i);
    const float a = of.at(i);
    const float b = of.at(by.half + i);
    put(i, a * turn.cosine - b * turn.sine);
    put(by.half + i, b * turn.cosine + a * turn.sine);
  }
  for (int i = by.width + thread; i < kMostWidth; i += kThreads)
    for (int g = 0; g < heads; ++g) query[g][i] = 0;
  __syncthreads();

  Seen seen[G];
  for (int base = first; base < end; base += kKeys) {
    bool counts[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) counts[n] = seen_at(base + n * kSlots + slot);
    float score[G][kAtOnce];
#pragma unroll
    for (int g = 0; g < G; ++g)
      if (g < heads) score_keys<L>(score[g], query[g] + column, read_keys);
    Eight these[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) these[n] = read_values[n];
    fetch(base + kKeys);
    look_up(base + 2 * kKeys);
#pragma unroll
    for (int g = 0; g < G; ++g)
      if (g < heads) see(seen[g], score[g], these, counts);
  }
  if (has_new && warp == 0) {
    const Eight keys_of_new[1] = {inside ? new_key[lane % L] : Eight{}};
    const Eight values_of_new[1] = {inside ? new_value[lane % L] : Eight{}};
    const bool counts[1] = {slot == 0};
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (g >= heads) break;
      float score[1];
      score_keys<L>(score, query[g] + column, keys_of_new);
      see(seen[g], score, values_of_new, counts);
    }
  }
  // Combines the sums of a warp's keys, then of all warps, in thread order.
#pragma unroll
  for (int g = 0; g < G; ++g) {
    if (g >= heads) break;
    Seen& mine = seen[g];
#pragma unroll
    for (int distance = L; distance < 32; distance *= 2) {
      const float theirs = __shfl_xor_sync(kAll, mine.largest, distance);
      const float largest = fmaxf(mine.largest, theirs);
      const float keep = exp2f(mine.largest - largest);
      const float take = exp2f(theirs - largest);
      mine.largest = largest;
      mine.weight = mine.weight * keep + __shfl_xor_sync(kAll, mine.weight, distance) * take;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i)
        mine.sum[i] = mine.sum[i] * keep + __shfl_xor_sync(kAll, mine.sum[i], distance) * take;
    }
    if (lane < L) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) sums[g][warp][column + i] = mine.sum[i];
      if (lane == 0) {
        largest_of[g][warp] = mine.largest;
        weights[g][warp] = mine.weight;
      }
    }
  }
  __syncthreads();
  for (int item = thread; item < heads * by.width; item += kThreads) {
    const int g = item / by.width, i = item % by.width;
    const long long of_row = row * by.heads + first_head + g;
    float largest = kLowest, weight = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, largest_of[g][w]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float take = exp2f(largest_of[g][w] - largest);
      weight += weights[g][w] * take;
      sum += sums[g][w][i] * take;
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

#define NEAP_ATTEND(name, L, WARPS, G, BLOCKS)                                             \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                         \
      attend_##name(                                                                       \
      Bf16* out, float* parts, Bf16* keys, Bf16* values, const long long* table,           \
      const Bf16* q, const Bf16* k, const Bf16* v, const Bf16* q_bias, const Bf16* k_bias, const Bf16* v_bias,           \
      const Bf16* q_norm, const Bf16* k_norm, const long long* positions,                  \
      const float* frequencies, Attend by) {                                               \
    attend<L, WARPS, G>(out, parts, keys, values, table, q, k, v, q_bias, k_bias, v_bias, q_norm, \
                        k_norm, positions, frequencies, by);                               \
  }
NEAP_ATTEND(8_4, 8, 4, 1, 5)
NEAP_ATTEND(8_8, 8, 8, 1, 2)
NEAP_ATTEND(8_8_shared, 8, 8, kMostHeads, 2)
NEAP_ATTEND(16_4, 16, 4, 1, 5)
NEAP_ATTEND(16_8, 16, 8, 1, 2)
NEAP_ATTEND(16_8_shared, 16, 8, kMostHeads, 2)
NEAP_ATTEND(32_4, 32, 4, 1, 5)
NEAP_ATTEND(32_8, 32, 8, 1, 2)
NEAP_ATTEND(32_8_shared, 32, 8, kMostHeads, 2)
