// A device that does its copies and its work as late as a program lets it: when the program waits for them, in the order in
// which they were given. Whoever reuses memory without a wait finds what others need overwritten.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"

namespace neap::bridge {

/// What is to be done, numbered from 1 on.
class LateWork {
 public:
  std::uint64_t add(std::function<void()> act) {
    left_.push_back(std::move(act));
    return last();
  }
  [[nodiscard]] std::uint64_t last() const { return done_ + left_.size(); }
  void run_until(std::uint64_t number) {
    for (; done_ < number && !left_.empty(); ++done_) {
      left_.front()();
      left_.pop_front();
    }
  }

 private:
  std::deque<std::function<void()>> left_;
  std::uint64_t done_ = 0;
};

class LateCopyQueue final : public device::CopyQueue {
 public:
  explicit LateCopyQueue(LateWork& work) : work_(work) {}
  ~LateCopyQueue() override { work_.run_until(work_.last()); }
  Status to_host(const device::Copy& copy) override {
    work_.add([copy] { std::memcpy(copy.host, memory_of(copy), copy.size.count()); });
    return {};
  }
  Status to_device(const device::Copy& copy) override {
    work_.add([copy] { std::memcpy(memory_of(copy), copy.host, copy.size.count()); });
    return {};
  }
  Result<std::uint64_t> mark_to_host() override { return work_.last(); }
  Result<std::uint64_t> mark_to_device() override { return work_.last(); }
  Status wait(std::uint64_t mark) override {
    work_.run_until(mark);
    return {};
  }
  // One after another keeps every order that streams may ask for.
  Status begin_after(device::StreamId) override { return {}; }
  Status hold_stream(device::StreamId, std::uint64_t, std::size_t) override { return {}; }
  Status hold_other_direction(std::uint64_t) override { return {}; }
  Result<std::vector<double>> take_held_seconds() override { return std::vector<double>(); }
  Result<double> seconds_between(std::uint64_t, std::uint64_t) override { return 0.0; }
  Status drain() override { return wait(work_.last()); }

 private:
  static void* memory_of(const device::Copy& copy) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): devices are known by address
    return reinterpret_cast<void*>(copy.device);
  }
  LateWork& work_;
};

/// Over a device whose memory is the process's.
class LateDevice final : public device::Device {
 public:
  explicit LateDevice(device::Device& below) : below_(below) {}
  /// Work of the stream.
  void submit(std::function<void()> work) { work_.add(std::move(work)); }

  [[nodiscard]] const device::DeviceInfo& info() const override { return below_.info(); }
  Result<device::MemoryInfo> memory() override { return below_.memory(); }
  Result<device::Address> reserve(Bytes size, Bytes alignment) override {
    return below_.reserve(size, alignment);
  }
  Status unreserve(device::Address at, Bytes size) override { return below_.unreserve(at, size); }
  Result<device::PageId> create(Bytes size) override { return below_.create(size); }
  Status release(device::PageId page) override { return below_.release(page); }
  Status map(device::Address at, device::PageId page) override { return below_.map(at, page); }
  Status set_access(device::Address at, Bytes size) override { return below_.set_access(at, size); }
  Status unmap(device::Address at, Bytes size) override { return below_.unmap(at, size); }
  Status grant_peer(int ordinal) override { return below_.grant_peer(ordinal); }
  Status copy_to_host(std::span<const device::Copy> copies) override {
    return below_.copy_to_host(copies);
  }
  Status copy_to_device(std::span<const device::Copy> copies) override {
    return below_.copy_to_device(copies);
  }
  Status fill(device::Address at, Bytes size, std::uint8_t value) override {
    return below_.fill(at, size, value);
  }
  Result<std::unique_ptr<device::CopyQueue>> make_copy_queue() override {
    return std::unique_ptr<device::CopyQueue>(std::make_unique<LateCopyQueue>(work_));
  }
  Status synchronize() override {
    work_.run_until(work_.last());
    return below_.synchronize();
  }
  Status synchronize(device::StreamId) override { return synchronize(); }
  Status register_host(void* at, Bytes size) override { return below_.register_host(at, size); }
  Status unregister_host(void* at) override { return below_.unregister_host(at); }
  Result<int> export_page(device::PageId page) override { return below_.export_page(page); }
  Result<device::PageId> import_page(int descriptor, Bytes size) override {
    return below_.import_page(descriptor, size);
  }

 private:
  device::Device& below_;
  LateWork work_;
};

}  // namespace neap::bridge
