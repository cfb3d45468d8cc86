#include "report/ticks.h"

#include <cmath>

namespace neap::report {

double nice_step(double least) {
  const double ten = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * ten >= least) return factor * ten;
  return 10 * ten;
}

std::vector<std::uint64_t> byte_ticks(std::uint64_t most, std::size_t count) {
  std::uint64_t step = 1;
  while (most / step >= count) step *= 2;
  std::vector<std::uint64_t> ticks;
  for (std::uint64_t tick = 0; tick <= most; tick += step) ticks.push_back(tick);
  return ticks;
}

}  // namespace neap::report
