// Stochastic rounding of float32 to bfloat16, in two bitwise identical forms: a loop for the CPU,
// and libtorch operations for a GPU, which need no custom kernel.
//
// A random number below 2^16 is added to the bits of a float32, and the upper half is kept. So a
// value between two neighbours is rounded to each with a probability proportional to its distance
// from the other one, and the mean is exact. Values of bfloat16 stay unchanged.
//
// Threads   stateless functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/random.h"

namespace neap::ops {

// Constants of a 32-bit integer hash with low bias (C. Wellons, "lowbias32").
constexpr std::uint32_t kNoiseMix1 = 0x7feb352dU;
constexpr std::uint32_t kNoiseMix2 = 0x846ca68bU;

/// Start and stride of a stream of noise.
struct NoiseKey {
  explicit constexpr NoiseKey(std::uint64_t key)
      : multiplier(static_cast<std::uint32_t>(mix(key)) | 1U),
        offset(static_cast<std::uint32_t>(mix(key) >> 32)) {}
  std::uint32_t multiplier, offset;
};

/// Number `i` of the stream `key`, in 0 .. 2^16 - 1.
[[nodiscard]] constexpr std::int32_t noise_number(std::uint64_t key, std::int64_t i) {
  const NoiseKey k(key);
  std::uint32_t x = static_cast<std::uint32_t>(i) * k.multiplier + k.offset;
  x = (x ^ (x >> 16)) * kNoiseMix1;
  x = (x ^ (x >> 15)) * kNoiseMix2;
  return static_cast<std::int32_t>(x >> 16);
}

[[nodiscard]] at::Tensor rounding_noise_by_operations(at::Device device, std::uint64_t key,
                                                      std::int64_t n);
/// `to`, `value` and `noise` are flat tensors of one length. noise ^ change is added.
void round_by_operations(const at::Tensor& to, const at::Tensor& value, const at::Tensor& noise,
                         std::int32_t change);
void round_on_host(const at::Tensor& to, const at::Tensor& value, const at::Tensor& noise,
                   std::int32_t change);

}  // namespace neap::ops
