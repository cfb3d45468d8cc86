// Holes that destroyed regions leave: whom their pages serve, and whom not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "conformance/sanitizer.h"
#include "device/sim/sim_device.h"
#include "unit/arena/arena_edges.h"

namespace neap::arena {
namespace {

TEST_F(ArenaEdges, AHoleInPagesThatAnAliasSeesServesNobody) {
  const RegionInfo first = create("train", 1_MiB, Policy::kHost);
  create("train", 1_MiB, Policy::kHost);
  pause({"train"});
  resume({"train"});  // from here on both lie in one page
  paint(first, 1);
  const auto rollout = arena_->alias("rollout", first.id);
  ASSERT_TRUE(rollout.ok());
  ASSERT_TRUE(arena_->destroy(first.id).ok());
  const RegionInfo next = create("train", 1_MiB);
  paint(next, 2);
  EXPECT_TRUE(painted(*rollout, 1)) << "the new region lies over the alias' contents";
  ASSERT_TRUE(arena_->destroy(rollout->id).ok());
  expect_nothing_left();
}

TEST_F(ArenaEdges, AHoleInExportedPagesServesNobody) {
  const RegionInfo first = create("train", 1_MiB, Policy::kHost);
  create("train", 1_MiB, Policy::kHost);
  pause({"train"});
  resume({"train"});
  paint(first, 1);
  auto pages = arena_->export_pages(first.id);
  ASSERT_TRUE(pages.ok());
  auto other = std::move(Arena::make(*device_)).value();
  const auto guest = other->import_pages("guest", *pages);
  for (const ExportedPage& page : *pages) ::close(page.descriptor);
  ASSERT_TRUE(guest.ok());
  ASSERT_TRUE(arena_->destroy(first.id).ok());
  const RegionInfo next = create("train", 1_MiB);
  paint(next, 2);
  EXPECT_EQ(*word(guest->address), 1ull << 48) << "another process would see the new region";
  other.reset();
  expect_nothing_left();
}

TEST_F(ArenaEdges, NeighbouringHolesServeOneLargerRegion) {
  std::vector<RegionInfo> all;
  all.reserve(4);
  for (int i = 0; i < 4; ++i) all.push_back(create("a", 1_MiB, Policy::kHost));
  pause({"a"});
  resume({"a"});
  paint(all[3], 3);
  for (const int i : {1, 0, 2})
    ASSERT_TRUE(arena_->destroy(all[static_cast<std::size_t>(i)].id).ok());
  const auto creates = arena_->stats().driver_creates;
  const RegionInfo large = create("a", 3_MiB);
  EXPECT_EQ(large.address, all[0].address);
  EXPECT_EQ(arena_->stats().driver_creates, creates);
  paint(large, 7);
  EXPECT_TRUE(painted(all[3], 3));
  EXPECT_EQ(mapped(), 4_MiB);
  ASSERT_TRUE(arena_->destroy(all[3].id).ok());
  EXPECT_TRUE(painted(large, 7));
  ASSERT_TRUE(arena_->destroy(large.id).ok());
  EXPECT_TRUE(mapped().is_zero());
  expect_nothing_left();
}

TEST_F(ArenaEdges, ALargerRegionIsFoundWhereSmallerOnesWere) {
  std::vector<RegionInfo> all;
  all.reserve(8);
  for (int i = 0; i < 8; ++i) all.push_back(create("a", 1_MiB));
  for (const std::size_t i : {1u, 2u, 3u}) ASSERT_TRUE(arena_->destroy(all[i].id).ok());
  const RegionInfo large = create("a", 3_MiB);
  ASSERT_EQ(large.address, all[1].address);
  for (const Bytes offset : {0_B, 1_MiB, 2_MiB, 3_MiB - 1_B}) {
    const auto found = arena_->find(large.address + offset.count());
    ASSERT_TRUE(found.ok()) << offset.count();
    EXPECT_EQ(found->id, large.id) << offset.count();
  }
  EXPECT_EQ(arena_->find(all[0].address)->id, all[0].id);
  EXPECT_EQ(arena_->find(all[4].address)->id, all[4].id);
}

// Destroying n regions that share pages must not look at all holes each time: with that, the 20 000
// here took over 20 s.
TEST_F(ArenaEdges, ManySharingRegionsGoInAnyOrder) {
  device::SimOptions options;
  options.capacity = 1_TiB;
  const auto sim = std::move(device::make_sim_device(options)).value();
  auto arena = std::move(Arena::make(*sim)).value();
  std::vector<RegionId> all;
  all.reserve(20'000);
  for (int i = 0; i < 20'000; ++i) all.push_back(arena->create("many", 2_MiB)->id);
  ASSERT_TRUE(arena->pause({}).ok());
  ASSERT_TRUE(arena->resume({}).ok());
  std::shuffle(all.begin(), all.end(), std::mt19937(1));  // NOLINT: the same each time
  const std::clock_t begin = std::clock();
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(arena->destroy(all[i]).ok());
    if (i % 4 == 0) all.push_back(arena->create("many", 4_MiB)->id);
  }
  // A quarter of a second of a fast processor, 12 of a slow one; with a search through all that is dead, minutes.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kInstrumented ? 90 : 40);
  arena.reset();
  EXPECT_EQ(sim->usage(), device::Ledger::Usage{});
}

}  // namespace
}  // namespace neap::arena
