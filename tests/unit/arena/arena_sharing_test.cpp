// Pages that several regions or processes share.
#include "arena/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "arena_fixture.h"

namespace neap::arena {
namespace {

TEST_F(ArenaTest, AliasSharesPagesUntilOneSideLeaves) {
  const RegionInfo trained = create("train", 3_MiB, Policy::kHost);
  paint(trained, 1);
  const auto rollout = arena_->alias("rollout", trained.id);
  ASSERT_TRUE(rollout.ok());
  EXPECT_EQ(arena_->stats().physical, 3_MiB);
  EXPECT_TRUE(painted(*rollout, 1));
  bytes(*rollout)[5] ^= 0xff;
  EXPECT_EQ(bytes(trained)[5], bytes(*rollout)[5]);
  bytes(*rollout)[5] ^= 0xff;
  pause({"train"});
  EXPECT_TRUE(painted(*rollout, 1));
  EXPECT_TRUE(arena_->stats().page_store.is_zero());
  resume({"train"});
  EXPECT_TRUE(painted(trained, 1));
  EXPECT_TRUE(arena_->destroy(rollout->id).ok());
  EXPECT_TRUE(painted(trained, 1));
}

TEST_F(ArenaTest, ExportedPagesArriveElsewhereAndNeverServeAnotherTag) {
  const RegionInfo a = create("a", 3_MiB);
  paint(a, 1);
  auto pages = arena_->export_pages(a.id);
  ASSERT_TRUE(pages.ok());
  auto other = std::move(Arena::make(*device_)).value();
  const auto copy = other->import_pages("b", *pages);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  for (const ExportedPage& page : *pages) ::close(page.descriptor);
  EXPECT_TRUE(painted(*copy, 1));
  pause({"a"});
  EXPECT_TRUE(arena_->stats().page_store.is_zero());
  EXPECT_EQ(arena_->export_pages(a.id).status().code(), ErrorCode::kBusy);
  EXPECT_TRUE(painted(*copy, 1));
  EXPECT_TRUE(other->pause({}).ok());
  EXPECT_TRUE(painted(*copy, 1)) << "imports are passed by";
  EXPECT_TRUE(other->destroy(copy->id).ok());
  other.reset();
  arena_.reset();
  EXPECT_EQ(device_->usage(), device::Ledger::Usage{});
}

TEST_F(ArenaTest, ARegionOfSeveralPagesArrivesWholeOrNotAtAll) {
  arena_->set_page_limit("a", 1_MiB);
  const RegionInfo a = create("a", 3_MiB);
  paint(a, 1);
  auto pages = arena_->export_pages(a.id);
  ASSERT_TRUE(pages.ok());
  ASSERT_EQ(pages->size(), 3u);
  auto other = std::move(Arena::make(*device_)).value();
  std::vector<ExportedPage> wrong = *pages;
  wrong[1].lead = 64_KiB;
  EXPECT_EQ(other->import_pages("b", wrong).status().code(), ErrorCode::kInvalidArgument);
  wrong = {(*pages)[0], (*pages)[2]};
  EXPECT_EQ(other->import_pages("b", wrong).status().code(), ErrorCode::kInvalidArgument);
  const auto copy = other->import_pages("b", *pages);
  for (const ExportedPage& page : *pages) ::close(page.descriptor);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  EXPECT_EQ(copy->size, 3_MiB);
  EXPECT_TRUE(painted(*copy, 1));
}

// Its page is mapped elsewhere still: what a new region wrote there would be seen by the alias.
TEST_F(ArenaTest, AHoleUnderAnAliasServesNobody) {
  const RegionInfo gone = create("small", 64_KiB), neighbour = create("small", 64_KiB);
  pause({"small"});
  resume({"small"});  // both lie under one page now
  const auto alias = arena_->alias("alias", gone.id);
  ASSERT_TRUE(alias.ok()) << alias.status().message();
  paint(*alias, 3);
  ASSERT_TRUE(arena_->destroy(gone.id).ok());
  const RegionInfo fresh = create("small", 64_KiB);
  paint(fresh, 4);
  EXPECT_TRUE(painted(*alias, 3));
  ASSERT_TRUE(arena_->destroy(alias->id).ok());
  ASSERT_TRUE(arena_->destroy(fresh.id).ok());
  EXPECT_EQ(create("small", 64_KiB).address, gone.address) << "nobody maps it any more";
}

}  // namespace
}  // namespace neap::arena
