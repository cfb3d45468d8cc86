// A CPU allocator for libtorch that notes every request between start() and stop(), in order.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bridge/runtime.h"
#include "step/counting_ops.h"

namespace neap::testing {

/// Bytes of each request; the negative of its bytes where it is given back.
using Requests = std::vector<std::int64_t>;

class RecordingAllocator final : public c10::Allocator {
 public:
  static RecordingAllocator& instance() {
    static auto* allocator = [] {
      auto* a = new RecordingAllocator;
      a->host_ = c10::GetDefaultCPUAllocator();
      c10::SetCPUAllocator(a, 100);
      return a;
    }();
    return *allocator;
  }

  void start() {
    const std::lock_guard lock(mutex_);
    live_.clear();
    requests_.clear();
    thread_ = std::this_thread::get_id();
    recording_ = true;
  }
  [[nodiscard]] Requests stop() {
    const std::lock_guard lock(mutex_);
    recording_ = false;
    return std::move(requests_);
  }

  c10::DataPtr allocate(std::size_t size) override {
    void* at = size == 0 ? nullptr : host_->raw_allocate(size);
    // As a phase's pool does: other threads' tensors are scratch of kernels.
    if (at != nullptr && std::this_thread::get_id() == thread_ && !bridge::in_host_scope()) {
      const std::lock_guard lock(mutex_);
      if (recording_) {
        requests_.push_back(static_cast<std::int64_t>(size));
        live_[at] = static_cast<std::int64_t>(size);
      }
    }
    return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }

 private:
  static void release(void* at) {
    if (at == nullptr) return;
    RecordingAllocator& a = instance();
    {
      const std::lock_guard lock(a.mutex_);
      const auto it = a.live_.find(at);
      if (it != a.live_.end()) {
        if (a.recording_) a.requests_.push_back(-it->second);
        a.live_.erase(it);
      }
    }
    a.host_->raw_deallocate(at);
  }

  c10::Allocator* host_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<void*, std::int64_t> live_;
  Requests requests_;
  std::thread::id thread_;
  bool recording_ = false;
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
