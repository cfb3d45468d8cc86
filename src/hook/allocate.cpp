#include "hook/allocate.h"

#include <atomic>

#include "base/format.h"
#include "base/log.h"

namespace neap::hook {

Result<bool> free_region_at(const void* address) {
  const auto place = Runtime::get().look_up(address);
  if (!place) return false;
  if (place->region.address != reinterpret_cast<device::Address>(address)) {
    return Status(ErrorCode::kInvalidArgument,
                  format("Address {} lies inside a region of tag \"{}\", not at its beginning",
                         address, place->region.tag));
  }
  NEAP_TRY(Runtime::get().free(*place, Runtime::Pages::kRelease));
  return true;
}

void log_hook_failure(std::string_view call, const Status& failure) {
  static std::atomic<int> left{20};
  const int before = left.fetch_sub(1, std::memory_order_relaxed);
  if (before <= 0) return;
  log::error(format("{}: {}{}", call, failure.message(),
                    before == 1 ? " (further failures are not logged)" : ""));
}

}  // namespace neap::hook
