// A budget of host memory that is just used up: what makes room in it.
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "device/fault/fault_device.h"
#include "unit/arena/arena_edges.h"

namespace neap::arena {
namespace {

using device::Call;

class ArenaHostBudget : public ArenaEdges {
 protected:
  void SetUp() override { open_with(8_MiB); }
  void open_with(Bytes budget) {
    Options options;
    options.host_budget = budget;
    open(options);
  }
};

TEST_F(ArenaHostBudget, BuffersOfDestroyedRegionsMakeRoom) {
  const RegionInfo a = create("a", 4_MiB, Policy::kHost);
  pause({"a"});
  ASSERT_TRUE(arena_->destroy(a.id).ok());
  const RegionInfo b = create("b", 8_MiB, Policy::kHost);
  paint(b, 1);
  pause({"b"});
  resume({"b"});
  EXPECT_TRUE(painted(b, 1));
  EXPECT_LE(arena_->stats().host_buffers, 8_MiB);
}

TEST_F(ArenaHostBudget, ARegionsOwnOldBufferMakesRoom) {
  arena_->set_page_limit("kv", 1_MiB);
  const RegionInfo kv = create("kv", 8_MiB, Policy::kHost);
  ASSERT_TRUE(arena_->shrink(kv.id, 4_MiB, 4_MiB).ok());
  pause({"kv"});
  resume({"kv"});
  ASSERT_TRUE(arena_->grow(kv.id, 4_MiB, 4_MiB).ok());
  paint(kv, 1);
  pause({"kv"});
  resume({"kv"});
  EXPECT_TRUE(painted(kv, 1));
  EXPECT_LE(arena_->stats().host_buffers, 8_MiB);
}

TEST_F(ArenaHostBudget, BuffersThatHoldNothingMakeRoomWhilePaused) {
  create("a", 6_MiB, Policy::kHost);
  pause({"a"});
  resume({"a"});
  pause({"a"}, {.policy = Policy::kDiscard});
  const RegionInfo b = create("b", 6_MiB, Policy::kHost);
  paint(b, 1);
  pause({"b"});
  resume({"b"});
  EXPECT_TRUE(painted(b, 1));
  resume({"a"});
}

TEST_F(ArenaHostBudget, DiskBackupsNeedNoneOfIt) {
  const RegionInfo a = create("a", 8_MiB, Policy::kHost);
  const RegionInfo d = create("d", 4_MiB, Policy::kDisk);
  paint(a, 1);
  paint(d, 2);
  pause({"a"});
  pause({"d"});
  resume({"d"});
  EXPECT_TRUE(painted(d, 2));
  open_with(Bytes(0));
  const RegionInfo none = create("d", 4_MiB, Policy::kDisk);
  paint(none, 3);
  pause({"d"});
  resume({"d"});
  EXPECT_TRUE(painted(none, 3));
}

TEST_F(ArenaHostBudget, NothingIsKeptWhereNothingIsToBeKept) {
  Options options;
  options.keep_host_buffers = false;
  open(options);
  create("h", 4_MiB, Policy::kHost);
  create("d", 4_MiB, Policy::kDisk);
  pause({"d"});
  EXPECT_TRUE(arena_->stats().host_buffers.is_zero()) << "what staged the disk's";
  for (const Call call : {Call::kUnmap, Call::kQueueWait}) {
    faults_->arm({.fail_at = 1, .only = call});
    EXPECT_FALSE(arena_->pause(tags({"h"})).ok());
    faults_->arm({});
    EXPECT_TRUE(arena_->stats().host_buffers.is_zero()) << "of a pause that failed";
  }
  pause({"h"});
  EXPECT_EQ(arena_->stats().host_buffers, 4_MiB);
  resume({});
  EXPECT_TRUE(arena_->stats().host_buffers.is_zero());
}

}  // namespace
}  // namespace neap::arena
