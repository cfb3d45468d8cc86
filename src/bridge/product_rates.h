// Measures the throughput of libtorch's matrix products, for time estimates in plans.
//
// Threads   one.
// Failure   throws what libtorch throws.
// Cost      a second: products of 4096^3 on a GPU, of 512^3 on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace neap::bridge {

/// In FLOP/s.
struct ProductRates {
  double half_flops = 0;    ///< bfloat16
  double single_flops = 0;  ///< float32
  double fp8_flops = 0;     ///< e4m3; 0 on the CPU, and on GPUs without them
};
[[nodiscard]] ProductRates measure_products(at::Device device);

}  // namespace neap::bridge
