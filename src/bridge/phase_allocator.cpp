#include "bridge/phase_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <limits>

#include "base/status.h"

namespace neap::bridge {

PhaseAllocator* PhaseAllocator::current() {
  auto* const installed = dynamic_cast<PhaseAllocator*>(c10::GetCPUAllocator());
  return installed != nullptr && std::this_thread::get_id() == installed->thread_ ? installed
                                                                                  : nullptr;
}

void PhaseAllocator::install() {
  c10::Allocator* const before = c10::GetCPUAllocator();
  if (dynamic_cast<PhaseAllocator*>(before) != nullptr)
    throw Error(ErrorCode::kInternal, "A phase of another runtime is open in this process");
  host_ = before;
  thread_ = std::this_thread::get_id();
  host_scopes_ = 0;
  // libtorch ignores a priority below that of the current allocator, and does not report that
  // priority. So increasing values are tried.
  for (priority_ = 0;; ++priority_) {
    c10::SetCPUAllocator(this, priority_);
    if (c10::GetCPUAllocator() == this) return;
    if (priority_ == std::numeric_limits<std::uint8_t>::max())
      throw Error(ErrorCode::kInternal, "libtorch does not take another CPU allocator");
  }
}

void PhaseAllocator::remove() {
  if (thread_ == std::thread::id()) return;
  thread_ = {};
  c10::SetCPUAllocator(host_, priority_);
}

}  // namespace neap::bridge
