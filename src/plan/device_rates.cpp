#include "plan/device_rates.h"

namespace neap::plan {

step::KernelRates default_rates(bool cuda, std::int64_t threads) {
  if (cuda) return {700e12, 50e12, 4e12, 4e-6};
  const auto n = static_cast<double>(threads);
  return {30e9 * n, 60e9 * n, 8e9 * n, 2e-6};
}

}  // namespace neap::plan
