// The heads of new tokens in decoding, one of each sequence. Biases are added. Queries and keys are turned by the token's
// position, in float32: [x1 cos - x2 sin, x2 cos + x1 sin, rest]. Keys and values go to their places in the cache. A block
// has a head of a row.

struct Append {
  long long q_row, q_head, k_row, k_head, v_row, v_head;    // strides of heads (B, heads, width)
  long long keys_row, keys_head, values_row, values_head;  // of the cache (B', heads, tokens, width)
  int heads, key_heads, width;
  int half;      // columns of half a turn; 0: nothing turns
  float factor;  // of cosine and sine
};

template <class T>
__device__ inline void append(T* turned, T* keys, T* values, const T* q, const T* k, const T* v,
                              const T* q_bias, const T* k_bias, const T* v_bias,
                              const long long* positions, const float* frequencies, Append by) {
  const long long row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const long long position = positions[row];
  const T* from;
  const T* bias;  // null: none
  T* to;
  int half = by.half;
  if (head < by.heads) {
    from = q + row * by.q_row + head * by.q_head;
    bias = q_bias == nullptr ? nullptr : q_bias + head * by.width;
    to = turned + (row * by.heads + head) * by.width;
  } else if (head < by.heads + by.key_heads) {
    const long long key = head - by.heads;
    from = k + row * by.k_row + key * by.k_head;
    bias = k_bias == nullptr ? nullptr : k_bias + key * by.width;
    to = keys + row * by.keys_row + key * by.keys_head + position * by.width;
  } else {
    const long long value = head - by.heads - by.key_heads;
    from = v + row * by.v_row + value * by.v_head;
    bias = v_bias == nullptr ? nullptr : v_bias + value * by.width;
    to = values + row * by.values_row + value * by.values_head + position * by.width;
    half = 0;
  }
  // Sums are rounded as a product's with a bias.
  const auto read = [&](int i) {
    return bias == nullptr ? widen(from[i]) : widen(narrow<T>(widen(from[i]) + widen(bias[i])));
  };
  for (int i = thread; i < half; i += threads) {
    const float angle = static_cast<float>(position) * frequencies[i];
    // Rounded as the tables of other passes are.
    const float cosine = widen(narrow<T>(cosf(angle) * by.factor));
    const float sine = widen(narrow<T>(sinf(angle) * by.factor));
    const float a = read(i);
    const float b = read(half + i);
    to[i] = narrow<T>(a * cosine - b * sine);
    to[half + i] = narrow<T>(b * cosine + a * sine);
  }
  for (int i = 2 * half + thread; i < by.width; i += threads) to[i] = narrow<T>(read(i));
}

#define NEAP_APPEND(name, T)                                                                      \
  extern "C" __global__ void append_##name(                                                       \
      T* turned, T* keys, T* values, const T* q, const T* k, const T* v, const T* q_bias,         \
      const T* k_bias, const T* v_bias, const long long* positions, const float* frequencies,     \
      Append by) {                                                                                \
    append(turned, keys, values, q, k, v, q_bias, k_bias, v_bias, positions, frequencies, by);    \
  }
NEAP_APPEND(bf16, Bf16)
NEAP_APPEND(f32, float)
