#include "step/kernel_seconds.h"

#include <cmath>

namespace neap::step {
namespace {

// A device's power and its clocks are those of many products in a row; the rate is that of one large product after another
// kind of work.
constexpr double kProductShare = 0.94;
constexpr double kProductTraffic = 0.93;  // of the memory's rate
// Tiles read what they add to when they are done, and write it: as much time as 2.75 reads in a row.
constexpr double kSumTraffic = 2.75;
// Arithmetic and traffic hide each other in part: 1 would be their sum, infinity the larger of both.
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
