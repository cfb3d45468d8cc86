// How long kernels take, by what a device reaches.
//
// Threads   any; pure.   Cost   constant.
#pragma once

#include "step/counted_rates.h"

namespace neap::step {

/// Of an operation that moves `bytes` of memory at `share` of the device's rate.
[[nodiscard]] double traffic_seconds(const KernelRates& rates, double bytes, double share = 1);

/// Of a matrix product of so many FLOPs at `rate`: its operands and result are `bytes`, sums that it adds to `sum_bytes`.
/// Of 1 296 products of trained layers (2 to 16 384 tokens, six models, forward and backward) on an H100, eight of ten are
/// within 12 %, by the rates that `neap doctor` measured on it (tests/gpu/products.py, bench/results/products-h100.jsonl).
[[nodiscard]] double product_seconds(const KernelRates& rates, double rate, double flops,
                                     double bytes, double sum_bytes);

}  // namespace neap::step
