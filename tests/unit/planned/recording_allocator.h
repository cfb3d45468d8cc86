// A CPU allocator for libtorch that hands out host memory and repeats every request to a simulated
// caching allocator: what a real pass would have reserved.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"

namespace neap::plan::testing {

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
    cache_.reset();  // it refers to the source
    source_ = std::make_unique<cache::SimSource>(Bytes(1ull << 46));
    cache::CacheOptions options;
    options.locking = cache::LockPolicy::kNone;
    cache_ = std::make_unique<cache::CachingAllocator>(*source_, options);
    live_.clear();
    requests_.clear();
    recording_ = true;
  }
  cache::CacheStats stop() {
    const std::lock_guard lock(mutex_);
    recording_ = false;
    return cache_->stats();
  }
  [[nodiscard]] const std::vector<std::int64_t>& requests() const { return requests_; }

  c10::DataPtr allocate(std::size_t size) override {
    void* at = size == 0 ? nullptr : host_->raw_allocate(size);
    if (at != nullptr) {
      const std::lock_guard lock(mutex_);
      if (recording_) {
        requests_.push_back(static_cast<std::int64_t>(size));
        live_[at] = *cache_->malloc(Bytes(size));
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
        if (a.recording_) {
          (void)a.cache_->free(it->second);
          a.requests_.push_back(-1);
        }
        a.live_.erase(it);
      }
    }
    a.host_->raw_deallocate(at);
  }

  c10::Allocator* host_ = nullptr;
  std::mutex mutex_;
  std::unique_ptr<cache::SimSource> source_;
  std::unique_ptr<cache::CachingAllocator> cache_;
  std::unordered_map<void*, cache::Address> live_;
  std::vector<std::int64_t> requests_;  // bytes; -1: a free
  bool recording_ = false;
};

}  // namespace neap::plan::testing
