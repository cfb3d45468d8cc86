// A CPU allocator for libtorch that notes every request between start() and stop(), in order.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bridge/phase_allocator.h"
#include "step/counting/counting_ops.h"

namespace neap::testing {

/// Bytes of each request; the negative of its bytes where it is given back.
using Requests = std::vector<std::int64_t>;

class RecordingAllocator final : public bridge::PhaseAllocator {
 public:
  static RecordingAllocator& instance() {
    static auto* allocator = new RecordingAllocator;
    return *allocator;
  }

  void start() {
    install();
    const std::lock_guard lock(mutex_);
    requests_.clear();
    ++recording_;
  }
  [[nodiscard]] Requests stop() {
    remove();
    const std::lock_guard lock(mutex_);
    ++recording_;
    return std::move(requests_);
  }

  c10::DataPtr allocate(std::size_t size) override {
    // As a phase's pool does: other threads' tensors are scratch of kernels.
    if (size == 0 || !serves()) return allocate_outside(size);
    void* at = c10::GetDefaultCPUAllocator()->raw_allocate(size);
    const std::lock_guard lock(mutex_);
    requests_.push_back(static_cast<std::int64_t>(size));
    return {at, new Block{at, size, recording_}, &release, c10::Device(c10::DeviceType::CPU)};
  }

 private:
  struct Block {
    void* at;
    std::size_t size;
    int recording;
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    c10::GetDefaultCPUAllocator()->raw_deallocate(block->at);
    RecordingAllocator& a = instance();
    const std::lock_guard lock(a.mutex_);
    if (block->recording == a.recording_)
      a.requests_.push_back(-static_cast<std::int64_t>(block->size));
  }

  std::mutex mutex_;
  Requests requests_;
  int recording_ = 0;  // changes at each start and stop
};

/// The same of counted tensors.
class RecordingSink final : public step::MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t bytes) override {
    requests.push_back(bytes);
    live_[++last_] = bytes;
    return last_;
  }
  void release(std::uint64_t address) override {
    requests.push_back(-live_.at(address));
    live_.erase(address);
  }
  [[nodiscard]] bool empty() const { return live_.empty(); }
  Requests requests;

 private:
  std::unordered_map<std::uint64_t, std::int64_t> live_;
  std::uint64_t last_ = 0;
};

/// What both lists look like around the first difference; empty where they are equal.
[[nodiscard]] inline std::string difference(const Requests& measured, const Requests& planned) {
  std::size_t i = 0;
  while (i < measured.size() && i < planned.size() && measured[i] == planned[i]) ++i;
  if (i == measured.size() && i == planned.size()) return "";
  std::string out = "request " + std::to_string(i) + " of " + std::to_string(measured.size()) +
                    " measured, " + std::to_string(planned.size()) + " planned\n";
  const auto line = [&](const char* name, const Requests& list) {
    out += name;
    for (std::size_t k = i < 4 ? 0 : i - 4; k < std::min(i + 24, list.size()); ++k)
      out += (k == i ? " [" : " ") + std::to_string(list[k]) + (k == i ? "]" : "");
    out += "\n";
  };
  line("measured:", measured);
  line("planned: ", planned);
  return out;
}

}  // namespace neap::testing
