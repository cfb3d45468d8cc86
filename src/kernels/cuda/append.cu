// Decoding: stores keys and values of new tokens, one per sequence, in the cache. A block has one
// head of a row.
#include "new_heads.cuh"

template <class T>
__device__ inline void append(T* turned, T* keys, T* values, const T* q, const T* k, const T* v,
                              const T* q_bias, const T* k_bias, const T* v_bias,
                              const T* q_norm, const T* k_norm, const long long* positions,
                              const float* frequencies, Append by) {
  const long long row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const long long position = positions[row];
  NewHead<T> of{nullptr, nullptr, nullptr, by.norms.offset};
  T* to;
  int half = by.half;
  if (head < by.heads) {
    of.from = q + row * by.strides.q_row + head * by.strides.q_head;
    of.bias = q_bias == nullptr ? nullptr : q_bias + head * by.width;
    of.norm = q_norm;
    to = turned + (row * by.heads + head) * by.width;
  } else if (head < by.heads + by.key_heads) {
    const long long key = head - by.heads;
    of.from = k + row * by.strides.k_row + key * by.strides.k_head;
    of.bias = k_bias == nullptr ? nullptr : k_bias + key * by.width;
    of.norm = k_norm;
    to = keys + row * by.strides.keys_row + key * by.strides.keys_head + position * by.width;
  } else {
    const long long value = head - by.heads - by.key_heads;
    of.from = v + row * by.strides.v_row + value * by.strides.v_head;
    of.bias = v_bias == nullptr ? nullptr : v_bias + value * by.width;
    to =
        values + row * by.strides.values_row + value * by.strides.values_head + position * by.width;
    half = 0;
  }
  of.measure(by.width, by.norms.eps);
  for (int i = thread; i < half; i += threads) {
    const Turn turn = turn_of<T>(position, frequencies[i], by.factor);
    const float a = of.at(i);
    const float b = of.at(half + i);
    to[i] = narrow<T>(a * turn.cosine - b * turn.sine);
    to[half + i] = narrow<T>(b * turn.cosine + a * turn.sine);
  }
  for (int i = 2 * half + thread; i < by.width; i += threads) to[i] = narrow<T>(of.at(i));
}

#define NEAP_APPEND(name, T)                                                                      \
  extern "C" __global__ void append_##name(T* turned, T* keys, T* values, const T* q, const T* k, \
                                           const T* v, const T* q_bias, const T* k_bias,          \
                                           const T* v_bias, const T* q_norm, const T* k_norm,     \
                                           const long long* positions, const float* frequencies,  \
                                           Append by) {                                           \
    append(turned, keys, values, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, positions,      \
           frequencies, by);                                                                      \
  }
NEAP_APPEND(bf16, Bf16)
NEAP_APPEND(f32, float)
