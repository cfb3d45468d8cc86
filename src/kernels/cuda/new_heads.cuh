// Heads of a new token: adds biases, normalizes queries and keys, and rotates them by the token's
// position, in float32: [x1 cos - x2 sin, x2 cos + x1 sin, rest].
#include "kernels/decoding_sizes.h"

using namespace neap::kernels::decoding;

/// Element i of a head with its bias, which may be null. Rounded like a matrix product with a bias.
template <class T>
__device__ inline float biased(const T* from, const T* bias, int i) {
  return bias == nullptr ? widen(from[i]) : widen(narrow<T>(widen(from[i]) + widen(bias[i])));
}

/// A query or key with its bias and its norm; both may be null.
template <class T>
struct NewHead {
  const T* from;
  const T* bias;
  const T* norm;  // its weights
  float offset;
  float scale = 1;  // 1 / rms

  /// Called by all threads of a warp.
  __device__ inline void measure(int width, float eps) {
    if (norm == nullptr) return;
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < width; i += 32) {
      const float x = biased(from, bias, i);
      squares += x * x;
    }
    for (int distance = 16; distance > 0; distance /= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    scale = rsqrtf(squares / static_cast<float>(width) + eps);
  }
  __device__ inline float at(int i) const {
    const float x = biased(from, bias, i);
    return norm == nullptr ? x : widen(narrow<T>(x * scale * (widen(norm[i]) + offset)));
  }
};

struct Turn {
  float cosine, sine;
};
/// Rounded to T, like the rotations of other passes.
template <class T>
__device__ inline Turn turn_of(long long position, float frequency, float factor) {
  const float angle = static_cast<float>(position) * frequency;
  return {widen(narrow<T>(cosf(angle) * factor)), widen(narrow<T>(sinf(angle) * factor))};
}
