// A test that runs on every device; skipped where the device is missing.
#pragma once

#include <gtest/gtest.h>

#include "conformance/devices.h"

namespace neap::device {

class DeviceConformance : public testing::TestWithParam<DeviceMaker> {
 protected:
  void SetUp() override {
    owner_ = GetParam().make(256_MiB);
    if (owner_.real == nullptr) GTEST_SKIP() << GetParam().name << ": " << owner_.skip_reason;
    page_ = device().info().granularity;
  }
  Device& device() { return owner_.device(); }
  bool real() { return device().info().touches_memory; }
  [[nodiscard]] std::vector<std::uint8_t> pattern(Bytes size, std::uint8_t seed) const {
    std::vector<std::uint8_t> bytes(size.count());
    std::uint32_t state = seed + 1u;
    for (auto& byte : bytes) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::uint8_t>(state >> 24);
    }
    return bytes;
  }
  void write(Address at, const std::vector<std::uint8_t>& bytes) {
    const Copy copy{at, const_cast<std::uint8_t*>(bytes.data()), Bytes(bytes.size())};
    ASSERT_TRUE(device().copy_to_device({&copy, 1}).ok());
  }
  std::vector<std::uint8_t> read(Address at, Bytes size) {
    std::vector<std::uint8_t> bytes(size.count(), 0xcd);
    const Copy copy{at, bytes.data(), size};
    const Status status = device().copy_to_host({&copy, 1});
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
    return bytes;
  }
  Address reserve(std::uint64_t pages) {
    auto at = device().reserve(page_ * pages, Bytes(0));
    EXPECT_TRUE(at.ok()) << at.status().message();
    return at.ok() ? *at : 0;
  }
  PageId create(std::uint64_t pages) {
    auto page = device().create(page_ * pages);
    EXPECT_TRUE(page.ok()) << page.status().message();
    return page.ok() ? *page : PageId::kNone;
  }

  MadeDevice owner_;
  Bytes page_;
};

#define ASSERT_OK(expr)                               \
  do {                                                \
    const ::neap::Status asserted = (expr);           \
    ASSERT_TRUE(asserted.ok()) << asserted.message(); \
  } while (false)

}  // namespace neap::device
