#include "arena/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "arena_fixture.h"

namespace neap::arena {
namespace {

TEST_F(ArenaTest, HostPolicyKeepsAddressAndContents) {
  const RegionInfo a = create("weights", 3_MiB, Policy::kHost);
  const RegionInfo b = create("weights", 100_KiB, Policy::kHost);
  EXPECT_EQ(b.size, 128_KiB);
  paint(a, 1);
  paint(b, 2);
  const std::vector<unsigned char> contents(bytes(a), bytes(a) + a.size.count());
  for (int cycle = 0; cycle < 5; ++cycle) {
    const auto left = arena_->pause(tags({"weights"}));
    ASSERT_TRUE(left.ok());
    EXPECT_EQ(left->bytes, 3_MiB + 128_KiB);
    EXPECT_EQ(left->copied, 3_MiB + 128_KiB);
    EXPECT_EQ(arena_->info(a.id)->state, State::kPaused);
    EXPECT_TRUE(arena_->info(a.id)->mapped.is_zero());
    ASSERT_NE(arena_->host_copy(a.id), nullptr);
    EXPECT_EQ(std::memcmp(arena_->host_copy(a.id), contents.data(), contents.size()), 0);
    ASSERT_NE(arena_->host_copy(b.id), nullptr);
    EXPECT_NE(std::memcmp(arena_->host_copy(b.id), contents.data(), b.size.count()), 0);
    resume({"weights"});
    EXPECT_EQ(arena_->info(a.id)->address, a.address);
    EXPECT_EQ(arena_->info(a.id)->generation, static_cast<std::uint64_t>(cycle) + 2);
    EXPECT_TRUE(painted(a, 1));
    EXPECT_TRUE(painted(b, 2));
  }
}

TEST_F(ArenaTest, EveryPolicyDoesWhatItSays) {
  const RegionInfo disk = create("disk", 40_MiB, Policy::kDisk);
  const RegionInfo zero = create("zero", 1_MiB, Policy::kZero);
  const RegionInfo drop = create("drop", 1_MiB);
  paint(disk, 3);
  paint(zero, 4);
  paint(drop, 5);
  pause({});
  EXPECT_EQ(device_->usage().maps, 0u);
  const Stats stats = arena_->stats();
  for (const TagStats& tag : stats.tags) {
    EXPECT_EQ(tag.disk, tag.tag == "disk" ? 40_MiB : Bytes(0)) << tag.tag;
    EXPECT_TRUE(tag.host.is_zero());
  }
  resume({});
  EXPECT_TRUE(painted(disk, 3));
  EXPECT_TRUE(std::all_of(bytes(zero), bytes(zero) + zero.size.count(),
                          [](unsigned char c) { return c == 0; }));
  EXPECT_EQ(arena_->info(drop.id)->state, State::kResident);
}

TEST_F(ArenaTest, PauseAndResumeTwiceDoNothingTheSecondTime) {
  const RegionInfo a = create("a", 1_MiB, Policy::kHost);
  paint(a, 1);
  pause({"a"});
  const auto again = arena_->pause(tags({"a", "unknown"}));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->regions, 0u);
  resume({"a"});
  const auto once_more = arena_->resume(tags({"a"}));
  ASSERT_TRUE(once_more.ok());
  EXPECT_EQ(once_more->regions, 0u);
  EXPECT_TRUE(painted(a, 1));
  EXPECT_EQ(arena_->info(a.id)->generation, 2u);
}

TEST_F(ArenaTest, PagesOfAPausedTagServeTheNext) {
  create("kv", 32_MiB);
  pause({"kv"});
  const auto before = arena_->stats();
  EXPECT_EQ(before.page_store, 32_MiB);
  create("optimizer", 32_MiB);
  const auto after = arena_->stats();
  EXPECT_EQ(after.driver_creates, before.driver_creates);
  EXPECT_EQ(after.store_hits, before.store_hits + 1);
  EXPECT_EQ(after.physical, 32_MiB);
}

TEST_F(ArenaTest, KeptPagesOfOtherSizesGoBackBeforeOutOfMemory) {
  create("kv", 48_MiB);
  pause({"kv"});
  create("other", 50_MiB);
  EXPECT_LE(arena_->stats().physical, 64_MiB);
}

TEST_F(ArenaTest, PhysicalTargetHoldsTheHighWaterMark) {
  Options options;
  options.physical_target = 20_MiB;
  open(64_MiB, 64_KiB, options);
  create("a", 16_MiB);
  pause({"a"});
  create("b", 12_MiB);
  EXPECT_LE(arena_->stats().peak_physical, 20_MiB);
}

TEST_F(ArenaTest, ResumeWithoutRoomFailsAsItWasAndNamesHolders) {
  const RegionInfo a = create("a", 40_MiB, Policy::kHost);
  paint(a, 9);
  pause({"a"});
  create("hog", 40_MiB);
  const auto failed = arena_->resume(tags({"a"}));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), ErrorCode::kOutOfDeviceMemory);
  ASSERT_NE(failed.status().shortage(), nullptr);
  EXPECT_EQ(failed.status().shortage()->need, 40_MiB);
  EXPECT_EQ(failed.status().shortage()->holders.front().tag, "hog");
  EXPECT_EQ(arena_->info(a.id)->state, State::kPaused);
  pause({"hog"});
  resume({"a"});
  EXPECT_TRUE(painted(a, 9));
}

TEST_F(ArenaTest, ResumeWaitsForMemoryThatComes) {
  const RegionInfo a = create("a", 40_MiB, Policy::kHost);
  paint(a, 9);
  PauseOptions to_driver;
  to_driver.release_pages = true;
  pause({"a"}, to_driver);
  auto other = std::move(Arena::make(*device_)).value();
  const auto hog = other->create("hog", 40_MiB);
  ASSERT_TRUE(hog.ok());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(other->pause(tags({"hog"}), to_driver).ok());
  });
  ResumeOptions options;
  options.wait = std::chrono::seconds(10);
  EXPECT_TRUE(arena_->resume(tags({"a"}), options).ok());
  later.join();
  EXPECT_TRUE(painted(a, 9));
  other.reset();
}

TEST_F(ArenaTest, ExchangeNeedsNoMoreThanTheLargerPlusAStage) {
  const RegionInfo a = create("a", 40_MiB, Policy::kHost);
  paint(a, 1);
  pause({"a"});
  const RegionInfo b = create("b", 40_MiB, Policy::kHost);
  paint(b, 2);
  for (int i = 0; i < 4; ++i) {
    const bool a_comes = i % 2 == 0;
    const auto done = arena_->exchange(tags({a_comes ? "b" : "a"}), tags({a_comes ? "a" : "b"}));
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_TRUE(a_comes ? painted(a, 1) : painted(b, 2));
    EXPECT_LE(arena_->stats().physical, 64_MiB);
  }
}

TEST_F(ArenaTest, FreeWhilePausedGivesEverythingBack) {
  const RegionInfo a = create("a", 1_MiB, Policy::kHost);
  pause({"a"});
  EXPECT_TRUE(arena_->destroy(a.id).ok());
  EXPECT_EQ(arena_->destroy(a.id).code(), ErrorCode::kNotFound);
  EXPECT_FALSE(arena_->find(a.address).ok());
  resume({"a"});
  EXPECT_EQ(arena_->release_store().status().code(), ErrorCode::kOk);
  arena_.reset();
  EXPECT_EQ(device_->usage(), device::Ledger::Usage{});
  EXPECT_EQ(device_->registered_hosts(), 0u);
}

TEST_F(ArenaTest, SmallRegionsShareLargePagesAfterTheFirstCycle) {
  std::vector<RegionInfo> all;
  for (unsigned i = 0; i < 40; ++i) {
    all.push_back(create("weights", 1_MiB, Policy::kHost));
    paint(all.back(), i);
  }
  EXPECT_EQ(device_->usage().maps, 40u);
  pause({"weights"});
  resume({"weights"});
  EXPECT_LE(device_->usage().maps, 2u);
  for (unsigned i = 0; i < 40; ++i) EXPECT_TRUE(painted(all[i], i));
  // Half of them die: their memory serves new regions of the tag, and goes with the next pause.
  for (unsigned i = 0; i < 40; i += 2) EXPECT_TRUE(arena_->destroy(all[i].id).ok());
  const auto creates = arena_->stats().driver_creates;
  const RegionInfo again = create("weights", 1_MiB, Policy::kHost);
  EXPECT_EQ(arena_->stats().driver_creates, creates);
  EXPECT_TRUE(arena_->destroy(again.id).ok());
  pause({"weights"});
  resume({"weights"});
  for (unsigned i = 1; i < 40; i += 2) EXPECT_TRUE(painted(all[i], i));
  EXPECT_EQ(device_->usage().mapped, 20_MiB);
}

TEST_F(ArenaTest, ElasticRegionsShrinkAndGrow) {
  arena_->set_page_limit("kv", 1_MiB);
  const RegionInfo kv = create("kv", 8_MiB, Policy::kHost);
  paint(kv, 1);
  auto left = arena_->shrink(kv.id, 2_MiB + 5_KiB, 4_MiB);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left->bytes, 3_MiB) << "whole pages within";
  EXPECT_EQ(arena_->info(kv.id)->mapped, 5_MiB);
  pause({"kv"});
  resume({"kv"});
  EXPECT_EQ(arena_->info(kv.id)->mapped, 5_MiB);
  EXPECT_TRUE(painted(kv, 1, Bytes(0), 3_MiB));
  EXPECT_TRUE(painted(kv, 1, 6_MiB));
  auto back = arena_->grow(kv.id, Bytes(0), 8_MiB);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->bytes, 3_MiB);
  paint(kv, 2);
  pause({"kv"});
  ASSERT_TRUE(arena_->shrink(kv.id, Bytes(0), 1_MiB).ok());
  resume({"kv"});
  EXPECT_EQ(arena_->info(kv.id)->mapped, 7_MiB);
  EXPECT_TRUE(painted(kv, 2, 1_MiB));
  EXPECT_FALSE(arena_->shrink(kv.id, 8_MiB, 1_MiB).ok());
}

TEST_F(ArenaTest, ListenersHearAndCanRefuse) {
  const RegionInfo a = create("a", 1_MiB, Policy::kHost);
  paint(a, 1);
  std::vector<std::string> heard;
  bool refuse = false;
  Callbacks callbacks;
  callbacks.before_unmap = [&](const RegionInfo& region) -> Status {
    heard.push_back("before " + std::to_string(region.generation));
    if (refuse) return {ErrorCode::kBusy, "still registered"};
    return {};
  };
  callbacks.after_map = [&](const RegionInfo& region) -> Status {
    heard.push_back("after " + std::to_string(region.generation));
    EXPECT_TRUE(arena_->find(region.address).ok()) << "no lock is held";
    return {};
  };
  const auto id = arena_->add_callbacks("a", callbacks);
  pause({"a"});
  resume({"a"});
  EXPECT_THAT(heard, testing::ElementsAre("before 1", "after 2"));
  refuse = true;
  const auto refused = arena_->pause(tags({"a"}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kBusy);
  EXPECT_NE(refused.status().message().find("calling before_unmap for tag a at 0x"),
            std::string::npos)
      << refused.status().message();
  EXPECT_EQ(arena_->info(a.id)->state, State::kResident);
  EXPECT_TRUE(painted(a, 1));
  arena_->remove_callbacks(id);
  pause({"a"});
}

TEST_F(ArenaTest, HostBudgetFailsCleanlyAndKeptBuffersMakeRoom) {
  Options options;
  options.host_budget = 8_MiB;
  open(64_MiB, 64_KiB, options);
  const RegionInfo a = create("a", 6_MiB, Policy::kHost);
  const RegionInfo b = create("b", 6_MiB, Policy::kHost);
  const RegionInfo c = create("c", 16_MiB, Policy::kHost);
  paint(a, 1);
  paint(b, 2);
  paint(c, 3);
  const auto failed = arena_->pause(tags({"c"}));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), ErrorCode::kOutOfHostMemory);
  EXPECT_EQ(arena_->info(c.id)->state, State::kResident);
  EXPECT_TRUE(painted(c, 3));
  pause({"a"});
  resume({"a"});
  pause({"b"});
  EXPECT_EQ(arena_->host_copy(a.id), nullptr) << "its kept buffer made room";
  resume({"b"});
  EXPECT_TRUE(painted(a, 1));
  EXPECT_TRUE(painted(b, 2));
}

TEST_F(ArenaTest, FullDiskFailsCleanly) {
  Options options;
  options.disk_folder = "/nonexistent/folder";
  open(64_MiB, 64_KiB, options);
  const RegionInfo a = create("a", 1_MiB, Policy::kDisk);
  paint(a, 1);
  const auto failed = arena_->pause(tags({"a"}));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), ErrorCode::kIo);
  EXPECT_TRUE(painted(a, 1));
}

TEST_F(ArenaTest, UnchangedTagsAreNotCopiedAgain) {
  const RegionInfo a = create("reference", 4_MiB, Policy::kHost);
  paint(a, 1);
  PauseOptions options;
  options.unchanged = true;
  auto first = arena_->pause(tags({"reference"}), options);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->copied, 4_MiB) << "there is no copy yet";
  resume({"reference"});
  auto second = arena_->pause(tags({"reference"}), options);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->copied.is_zero());
  resume({"reference"});
  EXPECT_TRUE(painted(a, 1));
}

TEST_F(ArenaTest, PreparedMemoryIsUsed) {
  create("a", 4_MiB, Policy::kHost);
  ASSERT_TRUE(arena_->prepare(tags({"a"})).ok());
  const Bytes held = arena_->stats().host_buffers;
  EXPECT_GE(held, 4_MiB);
  EXPECT_EQ(device_->registered_hosts(), 1u);
  pause({"a"});
  EXPECT_EQ(arena_->stats().host_buffers, held);
}

TEST_F(ArenaTest, BornPausedTakesNothing) {
  const auto a = arena_->create_paused("a", 4_MiB, Policy::kZero);
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(arena_->stats().physical.is_zero());
  resume({"a"});
  EXPECT_EQ(bytes(*a)[17], 0);
  EXPECT_EQ(arena_->info(a->id)->generation, 1u);
}

TEST_F(ArenaTest, FindKnowsInsideAndOutside) {
  std::vector<RegionInfo> all;
  all.reserve(50);
  for (int i = 0; i < 50; ++i) all.push_back(create(i % 2 ? "odd" : "even", 128_KiB));
  for (const auto& region : all) {
    EXPECT_EQ(arena_->find(region.address)->id, region.id);
    EXPECT_EQ(arena_->find(region.address + region.size.count() - 1)->id, region.id);
  }
  EXPECT_FALSE(arena_->find(0).ok());
  EXPECT_FALSE(arena_->find(~0ull).ok());
}

}  // namespace
}  // namespace neap::arena
