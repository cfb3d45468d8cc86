// Copies between regions and host storage, on every device that has memory.
#include "arena/transfer_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "device/host/host_device.h"

namespace neap::arena {
namespace {

using device::Address;
using testing::HasSubstr;

class TransferLaneTest : public testing::Test {
 protected:
  TransferLaneTest() {
    device::HostOptions options;
    options.capacity = 512_MiB;
    device_ = std::move(device::make_host_device(options)).value();
    Options arena;
    arena.host_budget = 300_MiB;
    arena_ = std::move(Arena::make(*device_, arena)).value();
    lane_ = std::move(TransferLane::make(*arena_)).value();
  }
  RegionInfo region(Bytes size, const char* tag = "weights") {
    return std::move(arena_->create(tag, size, Policy::kHost)).value();
  }
  std::unique_ptr<HostStorage> storage(Bytes size, const char* tag = "weights") {
    return std::move(HostStorage::make(*arena_, tag, size)).value();
  }
  static std::byte* bytes(const RegionInfo& region) {
    return reinterpret_cast<std::byte*>(region.address);  // NOLINT
  }
  static void fill(std::byte* at, Bytes size, unsigned seed) {
    for (std::size_t i = 0; i < size.count(); ++i)
      at[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 7);
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<TransferLane> lane_;
};

TEST_F(TransferLaneTest, PartsOfAStorageComeAndGo) {
  const RegionInfo buffer = region(6_MiB);
  const auto home = storage(200_MiB);  // more than one chunk of pinned memory
  fill(home->data(), home->size(), 1);
  const Bytes at(128_MiB - 1_MiB);  // across the border of two chunks
  const Transfer some[] = {{buffer.id, Bytes(512), home.get(), at, 3_MiB},
                           {buffer.id, 4_MiB, home.get(), Bytes(7), Bytes(1000)}};
  auto mark = lane_->to_device(some);
  ASSERT_TRUE(mark.ok()) << mark.status().message();
  ASSERT_TRUE(lane_->wait(*mark).ok());
  EXPECT_EQ(std::memcmp(bytes(buffer) + 512, home->data() + at.count(), (3_MiB).count()), 0);
  EXPECT_EQ(std::memcmp(bytes(buffer) + (4_MiB).count(), home->data() + 7, 1000), 0);

  fill(bytes(buffer), 6_MiB, 2);
  auto back = lane_->to_storage(some);
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_TRUE(lane_->drain().ok());
  EXPECT_EQ(std::memcmp(bytes(buffer) + 512, home->data() + at.count(), (3_MiB).count()), 0);
  EXPECT_EQ(std::memcmp(bytes(buffer) + (4_MiB).count(), home->data() + 7, 1000), 0);
}

TEST_F(TransferLaneTest, WhatIsBeingCopiedStaysWhereItIs) {
  const RegionInfo buffer = region(2_MiB);
  const auto home = storage(2_MiB);
  const Transfer all[] = {{buffer.id, Bytes(0), home.get(), Bytes(0), 2_MiB}};
  const auto first = lane_->to_device(all);
  const auto second = lane_->to_device(all);
  ASSERT_TRUE(first.ok() && second.ok());
  const std::vector<std::string> tags = {"weights"};
  const auto paused = arena_->pause(tags);
  EXPECT_EQ(paused.status().code(), ErrorCode::kBusy);
  EXPECT_THAT(paused.status().message(), HasSubstr("2 copies between weights and host storage"));
  EXPECT_EQ(arena_->destroy(buffer.id).code(), ErrorCode::kBusy);
  ASSERT_TRUE(lane_->wait(*first).ok());
  EXPECT_EQ(arena_->pause(tags).status().code(), ErrorCode::kBusy);
  ASSERT_TRUE(lane_->wait(*second).ok());
  ASSERT_TRUE(lane_->wait(*first).ok());  // again
  EXPECT_TRUE(arena_->pause(tags).ok());
  EXPECT_EQ(lane_->to_device(all).status().code(), ErrorCode::kBusy);  // not resident
  EXPECT_TRUE(arena_->resume(tags).ok());
  EXPECT_TRUE(lane_->to_device(all).ok());
}

TEST_F(TransferLaneTest, StorageLivesUntilItsCopiesWereWaitedFor) {
  const RegionInfo buffer = region(64_MiB);
  auto home = storage(64_MiB);
  fill(home->data(), home->size(), 4);
  const Transfer all[] = {{buffer.id, Bytes(0), home.get(), Bytes(0), 64_MiB}};
  ASSERT_TRUE(lane_->to_device(all).ok());
  home.reset();
  EXPECT_GE(arena_->stats().host_buffers, 64_MiB);
  ASSERT_TRUE(lane_->drain().ok());
  EXPECT_EQ(arena_->stats().host_buffers, Bytes(0));
  std::vector<std::byte> wanted((64_MiB).count());
  fill(wanted.data(), 64_MiB, 4);
  EXPECT_EQ(std::memcmp(bytes(buffer), wanted.data(), wanted.size()), 0);
}

TEST_F(TransferLaneTest, AWrongRangeQueuesNothing) {
  arena_->set_page_limit("weights", 2_MiB);
  const RegionInfo buffer = region(4_MiB);
  const auto home = storage(1_MiB);
  const Transfer good{buffer.id, Bytes(0), home.get(), Bytes(0), 1_MiB};
  const auto refused = [&](Transfer bad) {
    const Transfer both[] = {good, bad};
    const Status status = lane_->to_device(both).status();
    EXPECT_TRUE(arena_->pause({}).ok());  // nothing is under way
    EXPECT_TRUE(arena_->resume({}).ok());
    return status.code();
  };
  EXPECT_EQ(refused({buffer.id, Bytes(0), home.get(), Bytes(1), 1_MiB}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({buffer.id, 4_MiB, home.get(), Bytes(0), Bytes(1)}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({buffer.id, Bytes(8), home.get(), Bytes(~0ull), Bytes(8)}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({buffer.id, Bytes(0), nullptr, Bytes(0), Bytes(1)}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({RegionId{77}, Bytes(0), home.get(), Bytes(0), Bytes(1)}),
            ErrorCode::kNotFound);
  ASSERT_TRUE(arena_->shrink(buffer.id, 2_MiB, 2_MiB).ok());
  EXPECT_EQ(refused({buffer.id, 2_MiB, home.get(), Bytes(0), Bytes(1)}), ErrorCode::kBusy);
}

TEST_F(TransferLaneTest, StorageCountsAgainstTheBudgetAndGoesBack) {
  auto home = storage(200_MiB, "unit");
  const auto more = HostStorage::make(*arena_, "unit", 200_MiB);
  EXPECT_EQ(more.status().code(), ErrorCode::kOutOfHostMemory);
  EXPECT_THAT(more.status().message(), HasSubstr("taking 200 MiB of host storage for unit"));
  const auto host = [&] {
    for (const TagStats& tag : arena_->stats().tags)
      if (tag.tag == "unit") return tag.host;
    return Bytes(1);
  };
  EXPECT_EQ(host(), 200_MiB);
  EXPECT_GE(arena_->stats().host_buffers, 200_MiB);
  home.reset();
  EXPECT_EQ(host(), Bytes(0));
  EXPECT_EQ(arena_->stats().host_buffers, Bytes(0));
  EXPECT_TRUE(HostStorage::make(*arena_, "unit", 200_MiB).ok());
  EXPECT_EQ(HostStorage::make(*arena_, "unit", Bytes(0)).status().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(TransferLaneTest, StoragesOfATagThatAreReservedTakeWhatIsSaid) {
  const std::vector<Bytes> sizes = {Bytes(1), 3_MiB + 1_B, 130_MiB, 5_KiB, 1_MiB};
  const Bytes taken = HostStorage::taken(sizes);
  EXPECT_EQ(taken, 136_MiB);
  std::vector<std::unique_ptr<HostStorage>> made;
  const auto make_all = [&] {
    for (const Bytes size : sizes) {
      made.push_back(storage(size, "many"));
      fill(made.back()->data(), size, 7);
    }
  };
  arena_->set_backup_options(true, taken - 1_B, {}, {});
  const Status refused = HostStorage::reserve(*arena_, "many", sizes);
  EXPECT_EQ(refused.code(), ErrorCode::kOutOfHostMemory);
  EXPECT_THAT(refused.message(), HasSubstr("taking 136 MiB of host storage for many"));
  arena_->set_backup_options(true, taken, {}, {});
  ASSERT_TRUE(HostStorage::reserve(*arena_, "many", sizes).ok());
  make_all();
  EXPECT_EQ(arena_->stats().host_buffers, taken);
  made.clear();
  EXPECT_EQ(arena_->stats().host_buffers, Bytes(0));
  EXPECT_EQ(HostStorage::taken({}), Bytes(0));
  EXPECT_TRUE(HostStorage::reserve(*arena_, "many", {}).ok());
}

TEST_F(TransferLaneTest, AStreamIsOrderedWithCopies) {
  const RegionInfo buffer = region(64_MiB);
  const auto home = storage(64_MiB);
  fill(home->data(), home->size(), 3);
  ASSERT_TRUE(lane_->begin_after(device::StreamId::kDefault).ok());
  const Transfer all[] = {{buffer.id, Bytes(0), home.get(), Bytes(0), 64_MiB}};
  const auto mark = lane_->to_device(all);
  ASSERT_TRUE(mark.ok());
  ASSERT_TRUE(lane_->hold_stream(device::StreamId::kDefault, *mark, 1).ok());
  const auto held = lane_->take_held_seconds();
  ASSERT_TRUE(held.ok());
  ASSERT_EQ(held->size(), 2U);
  EXPECT_EQ(held->front(), 0);
  EXPECT_GT(held->back(), 0);
  EXPECT_TRUE(lane_->take_held_seconds()->empty()) << "counted once";
  // The host device's streams are the program.
  EXPECT_EQ(std::memcmp(bytes(buffer), home->data(), home->size().count()), 0);
  ASSERT_TRUE(lane_->wait(*mark).ok());
  EXPECT_TRUE(lane_->hold_stream(device::StreamId::kDefault, *mark, 1).ok());
}

TEST_F(TransferLaneTest, WhatIsStoredIsOverwrittenAfterwards) {
  const RegionInfo buffer = region(64_MiB);
  const auto home = storage(64_MiB);
  const auto next = storage(64_MiB);
  fill(bytes(buffer), 64_MiB, 5);
  fill(next->data(), next->size(), 6);
  const Transfer out[] = {{buffer.id, Bytes(0), home.get(), Bytes(0), 64_MiB}};
  const Transfer in[] = {{buffer.id, Bytes(0), next.get(), Bytes(0), 64_MiB}};
  const auto stored = lane_->to_storage(out);
  ASSERT_TRUE(stored.ok());
  ASSERT_TRUE(lane_->hold_other_direction(*stored).ok());
  ASSERT_TRUE(lane_->to_device(in).ok());
  ASSERT_TRUE(lane_->drain().ok());
  EXPECT_EQ(std::memcmp(bytes(buffer), next->data(), next->size().count()), 0);
  std::vector<std::byte> expected(next->size().count());
  fill(expected.data(), 64_MiB, 5);
  EXPECT_EQ(std::memcmp(home->data(), expected.data(), expected.size()), 0);
}

}  // namespace
}  // namespace neap::arena
