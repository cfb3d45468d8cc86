#include "cuda_recorder.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "bridge/torch_cuda_memory.h"

namespace neap::testing {
namespace {

std::mutex mutex;
std::vector<std::int64_t> requests;
std::unordered_map<std::size_t, std::int64_t> live;
bool recording = false;
thread_local int unrecorded = 0;

void note(const c10::CachingDeviceAllocator::TraceEntry& entry) {
  using Action = c10::CachingDeviceAllocator::TraceEntry::Action;
  const std::lock_guard lock(mutex);
  if (!recording) return;
  if (entry.action_ == Action::ALLOC && unrecorded == 0) {
    const auto size = static_cast<std::int64_t>(entry.size_);
    requests.push_back(size);
    live[entry.addr_] = size;
  } else if (entry.action_ == Action::FREE_REQUESTED) {
    const auto it = live.find(entry.addr_);
    if (it == live.end()) return;
    requests.push_back(-it->second);
    live.erase(it);
  }
}

}  // namespace

void start_cuda_recording() {
  static const bool once = [] {
    bridge::torch_cuda_allocator().attachAllocatorTraceTracker(note);
    return true;
  }();
  (void)once;
  const std::lock_guard lock(mutex);
  requests.clear();
  live.clear();
  recording = true;
}

std::vector<std::int64_t> stop_cuda_recording() {
  const std::lock_guard lock(mutex);
  recording = false;
  return std::move(requests);
}

Unrecorded::Unrecorded() {
  ++unrecorded;
}
Unrecorded::~Unrecorded() {
  --unrecorded;
}

}  // namespace neap::testing
