// Segments made of an arena's pages: where pages come from and go, and that a failed call leaves none.
#include "cache/arena_source.h"

#include <gtest/gtest.h>

#include "device/fault/fault_device.h"
#include "device/sim/sim_device.h"

namespace neap::cache {
namespace {

using device::Call;

class ArenaSourceTest : public testing::Test {
 protected:
  ArenaSourceTest() {
    device::SimOptions options;
    options.capacity = 256_MiB;
    sim_ = std::move(device::make_sim_device(options)).value();
    device_ = device::make_fault_device(*sim_);
    arena_ = std::move(arena::Arena::make(*device_, {})).value();
    source_.emplace(*arena_, "transient", 20_MiB);
  }
  [[nodiscard]] Bytes used() const { return 256_MiB - sim_->memory()->free; }

  std::unique_ptr<device::SimDevice> sim_;
  std::unique_ptr<device::FaultDevice> device_;
  std::unique_ptr<arena::Arena> arena_;
  std::optional<ArenaSource> source_;
};

TEST_F(ArenaSourceTest, ASegmentsPagesGoToTheStore) {
  const auto at = source_->allocate(20_MiB, 0, false);
  ASSERT_TRUE(at.ok()) << at.status().message();
  EXPECT_EQ(used(), 20_MiB);
  ASSERT_TRUE(source_->free(*at, 20_MiB).ok());
  EXPECT_EQ(used(), 20_MiB) << "the store keeps it for the next tag";
  ASSERT_TRUE(arena_->release_store().ok());
  EXPECT_EQ(used(), Bytes(0));
  EXPECT_FALSE(source_->free(*at, 20_MiB).ok());
}

TEST_F(ArenaSourceTest, UnitsOfAReservationCanBeUnmappedAlone) {
  const auto at = source_->reserve(200_MiB, 0, false);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(source_->map(*at, 60_MiB).ok());
  ASSERT_TRUE(source_->unmap(*at + (20_MiB).count(), 20_MiB).ok());
  ASSERT_TRUE(source_->map(*at + (20_MiB).count(), 20_MiB).ok());
  EXPECT_EQ(used(), 60_MiB) << "the page of the middle was used again";
  EXPECT_FALSE(source_->map(*at - 1, 20_MiB).ok());
}

TEST_F(ArenaSourceTest, AFailedMapGivesItsPagesBackAndCanBeRepeated) {
  const auto at = source_->reserve(100_MiB, 0, false);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(source_->map(*at + (60_MiB).count(), 20_MiB).ok());
  struct Fault {
    Call call;
    std::uint64_t number;
  };
  for (const auto& [call, number] :
       {Fault{Call::kCreate, 1}, Fault{Call::kCreate, 3}, Fault{Call::kMap, 1},
        Fault{Call::kMap, 2}, Fault{Call::kMap, 3}, Fault{Call::kSetAccess, 1}}) {
    SCOPED_TRACE(testing::Message() << device::to_string(call) << " " << number);
    ASSERT_TRUE(arena_->release_store().ok());
    device_->arm({number, call});
    EXPECT_FALSE(source_->map(*at, 60_MiB).ok());
    EXPECT_TRUE(device_->fired());
    device_->arm({});
    ASSERT_TRUE(arena_->release_store().ok());
    EXPECT_EQ(used(), 20_MiB) << "what was mapped before stays, and nothing else";
    ASSERT_TRUE(source_->map(*at, 60_MiB).ok()) << "the addresses are free again";
    ASSERT_TRUE(source_->unmap(*at, 60_MiB).ok());
  }
  ASSERT_TRUE(source_->unmap(*at + (60_MiB).count(), 20_MiB).ok());
  EXPECT_TRUE(source_->unreserve(*at, 100_MiB).ok());
}

TEST_F(ArenaSourceTest, AFailedAllocationLeavesNeitherPagesNorAddresses) {
  for (const Call call : {Call::kReserve, Call::kCreate, Call::kMap, Call::kSetAccess}) {
    SCOPED_TRACE(device::to_string(call));
    device_->arm({1, call});
    EXPECT_FALSE(source_->allocate(20_MiB, 0, false).ok());
    EXPECT_TRUE(device_->fired());
    device_->arm({});
    ASSERT_TRUE(arena_->release_store().ok());
    EXPECT_EQ(used(), Bytes(0));
  }
}

TEST_F(ArenaSourceTest, TheEndGivesEverythingBack) {
  ASSERT_TRUE(source_->allocate(20_MiB, 0, false).ok());
  const auto at = source_->reserve(100_MiB, 0, true);
  ASSERT_TRUE(at.ok());
  ASSERT_TRUE(source_->map(*at, 10_MiB).ok());
  source_.reset();
  ASSERT_TRUE(arena_->release_store().ok());
  EXPECT_EQ(used(), Bytes(0));
}

}  // namespace
}  // namespace neap::cache
