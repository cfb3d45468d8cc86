// Heads of a new token: adds biases, and rotates queries and keys by the token's position, in
// float32: [x1 cos - x2 sin, x2 cos + x1 sin, rest].
#include "kernels/decoding_sizes.h"

using namespace neap::kernels::decoding;

/// Element i of a head with its bias, which may be null. Rounded like a matrix product with a bias.
template <class T>
__device__ inline float biased(const T* from, const T* bias, int i) {
  return bias == nullptr ? widen(from[i]) : widen(narrow<T>(widen(from[i]) + widen(bias[i])));
}

struct Turn {
  float cosine, sine;
};
/// Rounded to T, like the rotations of other passes.
template <class T>
__device__ inline Turn turn_of(long long position, float frequency, float factor) {
  const float angle = static_cast<float>(position) * frequency;
  return {widen(narrow<T>(cosf(angle) * factor)), widen(narrow<T>(sinf(angle) * factor))};
}
