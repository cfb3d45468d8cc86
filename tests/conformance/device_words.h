// A suite's own way to a device's memory: words through a pinned buffer, past whatever is made to
// fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace neap::device {

/// Threads: none.
class DeviceWords {
 public:
  /// `device` outlives this; `most` words move at once.
  DeviceWords(Device& device, std::size_t most) : device_(device), buffer_(most) {
    const Status pinned = device_.register_host(buffer_.data(), bytes(most));
    EXPECT_TRUE(pinned.ok()) << pinned.message();
  }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;
  ~DeviceWords() { EXPECT_TRUE(device_.unregister_host(buffer_.data()).ok()); }

  /// Fills [at, at+size) with value(word's index).
  template <class F>
  void fill(Address at, Bytes size, F&& value) {
    for_pieces(at, size, [&](const Copy& copy, std::size_t first, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) buffer_[i] = value(first + i);
      const Status done = device_.copy_to_device({&copy, 1});
      EXPECT_TRUE(done.ok()) << done.message();
      return done.ok();
    });
  }
  /// Whether [at, at+size) holds value(word's index).
  template <class F>
  [[nodiscard]] bool holds(Address at, Bytes size, F&& value) {
    return for_pieces(at, size, [&](const Copy& copy, std::size_t first, std::size_t count) {
      const Status done = device_.copy_to_host({&copy, 1});
      EXPECT_TRUE(done.ok()) << done.message();
      bool same = done.ok();
      for (std::size_t i = 0; i < count; ++i) same = same && buffer_[i] == value(first + i);
      return same;
    });
  }
  /// One word at each address; at most `most` of them.
  void put(const std::vector<Address>& at, const std::vector<std::uint64_t>& values) {
    for (std::size_t i = 0; i < at.size(); ++i) buffer_[i] = values[i];
    const Status done = device_.copy_to_device(scattered(at));
    EXPECT_TRUE(done.ok()) << done.message();
  }
  [[nodiscard]] std::vector<std::uint64_t> get(const std::vector<Address>& at) {
    const Status done = device_.copy_to_host(scattered(at));
    EXPECT_TRUE(done.ok()) << done.message();
    return {buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at.size())};
  }

 private:
  static Bytes bytes(std::size_t words) { return Bytes(words * sizeof(std::uint64_t)); }
  template <class F>
  bool for_pieces(Address at, Bytes size, F&& visit) {
    const std::size_t words = size.count() / sizeof(std::uint64_t);
    for (std::size_t first = 0; first < words; first += buffer_.size()) {
      const std::size_t count = std::min(buffer_.size(), words - first);
      const Copy copy{at + first * sizeof(std::uint64_t), buffer_.data(), bytes(count)};
      if (!visit(copy, first, count)) return false;
    }
    return true;
  }
  const std::vector<Copy>& scattered(const std::vector<Address>& at) {
    copies_.clear();
    for (std::size_t i = 0; i < at.size(); ++i) copies_.push_back({at[i], &buffer_[i], bytes(1)});
    return copies_;
  }

  Device& device_;
  std::vector<std::uint64_t> buffer_;
  std::vector<Copy> copies_;
};

}  // namespace neap::device
