// An arena over a host device.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "arena/arena.h"
#include "device/host/host_device.h"
#include "tags.h"

namespace neap::arena {

class ArenaTest : public testing::Test {
 protected:
  void SetUp() override { open(64_MiB, 64_KiB); }
  void open(Bytes capacity, Bytes granularity, Options options = {}) {
    arena_.reset();
    device::HostOptions host;
    host.capacity = capacity;
    host.granularity = granularity;
    device_ = std::move(device::make_host_device(host)).value();
    arena_ = std::move(Arena::make(*device_, std::move(options))).value();
  }
  RegionInfo create(const char* tag, Bytes size, Policy policy = Policy::kDiscard) {
    auto made = arena_->create(tag, size, policy);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : RegionInfo{};
  }
  static unsigned char* bytes(const RegionInfo& region) {
    return reinterpret_cast<unsigned char*>(region.address);
  }
  static void paint(const RegionInfo& region, unsigned seed) {
    std::uint32_t state = seed * 2654435761u + 1;
    for (std::size_t i = 0; i < region.size.count(); ++i) {
      state = state * 1664525u + 1013904223u;
      bytes(region)[i] = static_cast<unsigned char>(state >> 24);
    }
  }
  static bool painted(const RegionInfo& region, unsigned seed, Bytes from = Bytes(0),
                      Bytes to = Bytes(~0ull)) {
    std::uint32_t state = seed * 2654435761u + 1;
    for (std::size_t i = 0; i < region.size.count(); ++i) {
      state = state * 1664525u + 1013904223u;
      if (i < from.count() || i >= to.count()) continue;
      if (bytes(region)[i] != static_cast<unsigned char>(state >> 24)) return false;
    }
    return true;
  }
  void pause(std::initializer_list<const char*> names, const PauseOptions& options = {}) {
    const auto done = arena_->pause(tags(names), options);
    ASSERT_TRUE(done.ok()) << done.status().message();
  }
  void resume(std::initializer_list<const char*> names) {
    const auto done = arena_->resume(tags(names));
    ASSERT_TRUE(done.ok()) << done.status().message();
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace neap::arena
