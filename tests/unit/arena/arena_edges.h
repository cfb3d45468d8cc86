// An arena over 64 MiB of a host device whose calls can be made to fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "device/fault/fault_device.h"
#include "device/host/host_device.h"
#include "tags.h"

namespace neap::arena {

class ArenaEdges : public testing::Test {
 protected:
  void SetUp() override { open(); }
  void open(const Options& options = {}) {
    arena_.reset();
    device::HostOptions host;
    host.capacity = 64_MiB;
    host.granularity = 64_KiB;
    device_ = std::move(device::make_host_device(host)).value();
    faults_ = device::make_fault_device(*device_);
    arena_ = std::move(Arena::make(*faults_, options)).value();
  }
  /// Everything the arena took is given back.
  void expect_nothing_left() {
    faults_->arm({});
    arena_.reset();
    EXPECT_EQ(device_->usage(), device::Ledger::Usage{});
    EXPECT_EQ(device_->registered_hosts(), 0u);
  }
  RegionInfo create(const char* tag, Bytes size, Policy policy = Policy::kDiscard) {
    auto made = arena_->create(tag, size, policy);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : RegionInfo{};
  }
  void pause(std::initializer_list<const char*> names, const PauseOptions& options = {}) {
    const auto done = arena_->pause(tags(names), options);
    ASSERT_TRUE(done.ok()) << done.status().message();
  }
  void resume(std::initializer_list<const char*> names) {
    const auto done = arena_->resume(tags(names));
    ASSERT_TRUE(done.ok()) << done.status().message();
  }
  static std::uint64_t* word(device::Address address) {
    return reinterpret_cast<std::uint64_t*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  /// A word at every 64 KiB tells its place and the seed.
  static void paint(const RegionInfo& region, std::uint64_t seed) {
    for (std::uint64_t at = 0; at < region.size.count(); at += 64 << 10)
      *word(region.address + at) = at ^ seed << 48;
  }
  static bool painted(const RegionInfo& region, std::uint64_t seed) {
    for (std::uint64_t at = 0; at < region.size.count(); at += 64 << 10)
      if (*word(region.address + at) != (at ^ seed << 48)) return false;
    return true;
  }
  [[nodiscard]] Bytes mapped() const {
    Bytes sum;
    for (const TagStats& tag : arena_->stats().tags) sum += tag.mapped;
    return sum;
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<device::FaultDevice> faults_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace neap::arena
