// Records the arena's events in the event sink: one record per event; has its own mutex.
#pragma once

#include <mutex>
#include <string_view>

#include "device/device.h"
#include "trace/event.h"

namespace neap::arena {

class EventRecorder {
 public:
  EventRecorder(trace::EventSink* sink, int device)
      : sink_(sink), device_(static_cast<std::uint16_t>(device)) {}

  void record(trace::EventKind kind, std::uint64_t address, Bytes size, std::string_view tag = {}) {
    if (sink_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    trace::Event event;
    event.kind = kind;
    event.address = address;
    event.size = size.count();
    event.device = device_;
    if (!tag.empty()) event.name = sink_->intern(tag);
    sink_->record(event);
  }

 private:
  trace::EventSink* sink_;
  std::uint16_t device_;
  std::mutex mutex_;
};

}  // namespace neap::arena
