// A recording written by hand, event by event.
#pragma once

#include <vector>

#include "trace/recording.h"

namespace neap::replay {

using trace::Event;
using trace::EventKind;

inline constexpr std::uint64_t kBase = 0x7f0000000000;
inline constexpr std::uint64_t kMiB = 1 << 20;

/// A recording of one device.
class Script {
 public:
  Script() {
    recording.source = trace::Source::kTorchSnapshot;
    recording.settings.present = true;
    recording.devices.resize(1);
    device().has_times = true;
  }
  trace::DeviceRecording& device() { return recording.devices[0]; }
  Script& add(EventKind kind, std::uint64_t address, std::uint64_t size, std::uint64_t stream = 0) {
    Event event;
    event.kind = kind;
    event.address = address;
    event.size = size;
    event.stream = stream;
    event.time_ns = 1000 * ++time_;
    device().events.push_back(event);
    return *this;
  }
  Script& phase(EventKind kind, const char* name) {
    add(kind, 0, 0);
    device().events.back().name = recording.names.intern(name);
    return *this;
  }
  Script& free(std::uint64_t address, std::uint64_t size) {
    add(EventKind::kFreeRequested, address, size);
    return add(EventKind::kFreeCompleted, address, size);
  }
  Script& segment(std::uint64_t address, std::uint64_t size, std::vector<trace::Block> blocks,
                  bool small = true) {
    trace::Segment segment;
    segment.address = address;
    segment.size = size;
    segment.small_pool = small;
    segment.first_block = static_cast<std::uint32_t>(device().blocks.size());
    segment.block_count = static_cast<std::uint32_t>(blocks.size());
    device().blocks.insert(device().blocks.end(), blocks.begin(), blocks.end());
    device().segments.push_back(segment);
    return *this;
  }
  trace::Recording recording;

 private:
  std::uint64_t time_ = 0;
};

inline constexpr auto kLive = trace::BlockState::kAllocated;
inline constexpr auto kFree = trace::BlockState::kFree;

}  // namespace neap::replay
