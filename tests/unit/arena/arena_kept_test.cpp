// Regions that are kept resident: moves pass them by.
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "device/host/host_device.h"

namespace neap::arena {
namespace {

constexpr Bytes kPage = 64_KiB;

class ArenaKept : public testing::Test {
 protected:
  void SetUp() override {
    device::HostOptions host;
    host.capacity = 16_MiB;
    host.granularity = kPage;
    device_ = std::move(device::make_host_device(host)).value();
    arena_ = std::move(Arena::make(*device_)).value();
  }
  RegionInfo create(const char* tag, std::uint64_t pages, Policy policy = Policy::kHost) {
    auto made = arena_->create(tag, kPage * pages, policy);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : RegionInfo{};
  }
  [[nodiscard]] RegionInfo now(const RegionInfo& region) const {
    return std::move(arena_->info(region.id)).value();
  }
  static volatile unsigned& word(const RegionInfo& region) {
    return *reinterpret_cast<volatile unsigned*>(region.address);
  }
  Bytes pause(const std::string& tag) {
    const auto done = arena_->pause({&tag, 1});
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? done->bytes : Bytes(0);
  }
  void resume(const std::string& tag) {
    const auto done = arena_->resume({&tag, 1});
    ASSERT_TRUE(done.ok()) << done.status().message();
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ArenaKept, PausesPassItBy) {
  const RegionInfo kept = create("mixed", 4);
  const RegionInfo other = create("mixed", 2);
  word(kept) = 17;
  word(other) = 29;
  EXPECT_EQ(arena_->keep_resident(kept.id).value(), kPage * 4);
  EXPECT_EQ(arena_->keep_resident(kept.id).value(), kPage * 4) << "twice is once";
  for (unsigned cycle = 1; cycle < 4; ++cycle) {
    EXPECT_EQ(pause("mixed"), kPage * 2);
    EXPECT_EQ(now(other).state, State::kPaused);
    EXPECT_EQ(now(kept).state, State::kResident);
    EXPECT_EQ(word(kept), 16 + cycle);
    word(kept) = word(kept) + 1;
    resume("mixed");
    EXPECT_EQ(now(kept).generation, kept.generation);
    EXPECT_EQ(now(other).generation, other.generation + cycle);
    EXPECT_EQ(word(kept), 17 + cycle);
    EXPECT_EQ(word(other), 29u);
  }
  EXPECT_TRUE(now(kept).kept);
  EXPECT_EQ(arena_->keep_resident(kept.id, false).value(), Bytes(0));
  EXPECT_EQ(pause("mixed"), kPage * 6);
  resume("mixed");
  EXPECT_EQ(word(kept), 20u);
}

TEST_F(ArenaKept, ExchangePassesItBy) {
  const RegionInfo kept = create("out", 3);
  const RegionInfo leaves = create("out", 3);
  const RegionInfo comes = create("in", 3);
  word(comes) = 5;
  pause("in");
  ASSERT_TRUE(arena_->keep_resident(kept.id).ok());
  const std::vector<std::string> out = {"out"}, in = {"in"};
  ASSERT_TRUE(arena_->exchange(out, in).ok());
  EXPECT_EQ(now(kept).state, State::kResident);
  EXPECT_EQ(now(leaves).state, State::kPaused);
  EXPECT_EQ(word(comes), 5u);
  ASSERT_TRUE(arena_->release_store().ok());
  EXPECT_EQ(device_->usage().page_bytes, kPage * 6) << "what stayed and what came";
}

TEST_F(ArenaKept, SmallNeighboursUnderTheSamePageStay) {
  const RegionInfo first = create("small", 1), kept = create("small", 1), last = create("small", 1);
  pause("small");
  resume("small");  // now they share one page
  ASSERT_EQ(device_->usage().maps, 1u);
  word(first) = 1;
  EXPECT_EQ(arena_->keep_resident(kept.id).value(), kPage * 3);
  EXPECT_EQ(pause("small"), Bytes(0));
  EXPECT_EQ(now(first).state, State::kResident);
  EXPECT_FALSE(now(first).kept);
  EXPECT_EQ(word(first), 1u);
  ASSERT_TRUE(arena_->destroy(kept.id).ok());
  EXPECT_EQ(pause("small"), kPage * 3) << "with the kept region gone, its page goes";
  EXPECT_EQ(now(last).state, State::kPaused);
}

TEST_F(ArenaKept, OnlyWhatIsThereAsAWhole) {
  const RegionInfo region = create("kv", 4);
  arena_->set_page_limit("kv", kPage);
  pause("kv");
  EXPECT_EQ(arena_->keep_resident(region.id).status().code(), ErrorCode::kBusy);
  resume("kv");
  ASSERT_TRUE(arena_->shrink(region.id, kPage, kPage).ok());
  EXPECT_EQ(arena_->keep_resident(region.id).status().code(), ErrorCode::kBusy);
  ASSERT_TRUE(arena_->grow(region.id, kPage, kPage).ok());
  ASSERT_TRUE(arena_->keep_resident(region.id).ok());
  EXPECT_EQ(arena_->shrink(region.id, kPage, kPage).status().code(), ErrorCode::kBusy);
  ASSERT_TRUE(arena_->destroy(region.id).ok());
  EXPECT_EQ(arena_->keep_resident(region.id).status().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(create("kv", 4).kept) << "new memory does not inherit it";
}

}  // namespace
}  // namespace neap::arena
