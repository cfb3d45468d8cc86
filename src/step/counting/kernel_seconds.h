// Estimates the time of kernels from a device's throughput.
//
// Threads   any; pure functions.
// Cost      constant.
#pragma once

#include "step/counting/counted_rates.h"

namespace neap::step {

/// Time of an operation that moves `bytes` of memory at `share` of the device's rate.
[[nodiscard]] double traffic_seconds(const KernelRates& rates, double bytes, double share = 1);

/// Time of a matrix product of `flops` FLOPs at `rate`. Operands and result take `bytes`; the
/// result is added to `sum_bytes`. For 1 296 products of trained layers on an H100 (2 to 16 384
/// tokens, six models, forward and backward), eight of ten are within 12 %. The rates were measured
/// with `neap doctor` (tests/gpu/products.py, bench/results/products-h100.jsonl).
[[nodiscard]] double product_seconds(const KernelRates& rates, double rate, double flops,
                                     double bytes, double sum_bytes);

}  // namespace neap::step
