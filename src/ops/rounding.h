// Stochastic rounding of float32 to bfloat16, in the two forms that AtenOps uses. Both give the same
// bits: a loop for the host, and operations of libtorch for a GPU, where they need no kernel of ours.
//
// A number below 2^16 is added to the bits of a float32, and the upper half is kept: a value between
// two neighbours goes to the farther one with a probability equal to its distance from the nearer
// one, so the mean is exact. Values of bfloat16 stay as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/random.h"

namespace neap::ops {

// Constants of a 32-bit integer hash of low bias (C. Wellons, "lowbias32").
constexpr std::uint32_t kNoiseMix1 = 0x7feb352dU;
constexpr std::uint32_t kNoiseMix2 = 0x846ca68bU;

/// Where a stream of noise starts and how it strides.
struct NoiseKey {
  explicit constexpr NoiseKey(std::uint64_t key)
      : multiplier(static_cast<std::uint32_t>(mix(key)) | 1U),
        offset(static_cast<std::uint32_t>(mix(key) >> 32)) {}
  std::uint32_t multiplier, offset;
};

/// Number `i` of the stream `key`: 0 .. 2^16 - 1.
[[nodiscard]] constexpr std::int32_t noise_number(std::uint64_t key, std::int64_t i) {
  const NoiseKey k(key);
  std::uint32_t x = static_cast<std::uint32_t>(i) * k.multiplier + k.offset;
  x = (x ^ (x >> 16)) * kNoiseMix1;
  x = (x ^ (x >> 15)) * kNoiseMix2;
  return static_cast<std::int32_t>(x >> 16);
}

[[nodiscard]] at::Tensor rounding_noise_by_operations(at::Device device, std::uint64_t key,
                                                      std::int64_t n);
/// Flat tensors of one length; noise ^ change is what is added.
void round_by_operations(const at::Tensor& to, const at::Tensor& value, const at::Tensor& noise,
                         std::int32_t change);
void round_on_host(const at::Tensor& to, const at::Tensor& value, const at::Tensor& noise,
                   std::int32_t change);

}  // namespace neap::ops
