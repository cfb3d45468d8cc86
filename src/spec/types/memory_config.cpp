#include "spec/types/memory_config.h"

#include <algorithm>

namespace neap::spec {

bool MemoryConfig::allows(Measure measure) const {
  return std::find(allow.begin(), allow.end(), measure) != allow.end();
}

double MemoryConfig::disk_rate() const {
  constexpr double kNvme = 2e9;  // shared by reads and writes
  return nvme_bandwidth.is_zero() ? kNvme : static_cast<double>(nvme_bandwidth.count());
}

}  // namespace neap::spec
