// Decoding of one new token per sequence, whose keys are contiguous.
constexpr bool kPaged = false;
#include "attend.cuh"

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
