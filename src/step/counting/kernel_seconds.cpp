#include "step/counting/kernel_seconds.h"

#include <cmath>

namespace neap::step {
namespace {

// The measured rate is that of one large product after other work. In a long series of products,
// power limits the clocks to this fraction.
constexpr double kProductShare = 0.94;
constexpr double kProductTraffic = 0.93;  // fraction of the memory throughput
// Tiles read and write the tensor that they add to when they are done. This takes as long as 2.75
// contiguous reads.
constexpr double kSumTraffic = 2.75;
// Arithmetic and traffic partly overlap. The exponent 1 would mean their sum, infinity their
// maximum.
constexpr double kHiding = 2.6;

}  // namespace

double traffic_seconds(const KernelRates& rates, double bytes, double share) {
  return rates.operation_seconds + bytes / (share * rates.bytes);
}

double product_seconds(const KernelRates& rates, double rate, double flops, double bytes,
                       double sum_bytes) {
  const double arithmetic = flops / (kProductShare * rate);
  const double traffic = (bytes + kSumTraffic * sum_bytes) / (kProductTraffic * rates.bytes);
  return rates.operation_seconds + rates.product_start_seconds +
         std::pow(std::pow(arithmetic, kHiding) + std::pow(traffic, kHiding), 1 / kHiding);
}

}  // namespace neap::step
