// Which pages ranges are made of, and how they find their way from one tag to the next. Real sizes:
// the simulated device has no memory behind its pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>

#include "arena/arena.h"
#include "arena/page_plan.h"
#include "device/fault/fault_device.h"
#include "device/sim/sim_device.h"

namespace neap::arena {
namespace {

using testing::ElementsAre;

std::vector<Bytes> tiles(Bytes size, PageUse use, Inventory there = {},
                         Bytes limit = Bytes(~0ull)) {
  const PageSizes sizes;
  auto pages = tile(size, sizes, caps_for(sizes, use, limit), there);
  Bytes sum;
  for (const Bytes page : pages) sum += page;
  EXPECT_EQ(sum, size);
  return pages;
}

TEST(PagePlan, TakesAnOddPageOfTheInventoryOnce) {
  const PageSizes sizes;
  Inventory there{{(6_MiB).count(), 1}};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(tile(6_MiB, sizes, caps_for(sizes, PageUse::kAgain, 64_GiB), there),
                ElementsAre(6_MiB));
    EXPECT_EQ(there.at((6_MiB).count()), 0U);
  }
}

TEST(PagePlan, LargeFirstPagesAndOneOddRest) {
  EXPECT_THAT(tiles(9_GiB + 768_MiB + 6_MiB, PageUse::kFirst),
              ElementsAre(4_GiB, 4_GiB, 1_GiB, 512_MiB, 256_MiB, 6_MiB));
  EXPECT_THAT(tiles(6_MiB, PageUse::kFirst), ElementsAre(6_MiB));
}

TEST(PagePlan, MadeAnewInCheaperPiecesUnlessLargeOnesAreThere) {
  EXPECT_EQ(tiles(8_GiB, PageUse::kAgain).size(), 8u);
  EXPECT_THAT(tiles(9_GiB, PageUse::kAgain, {{Bytes(4_GiB).count(), 1}}),
              ElementsAre(4_GiB, 1_GiB, 1_GiB, 1_GiB, 1_GiB, 1_GiB));
}

TEST(PagePlan, WhatIsThereComesBeforeWhatWouldBeNew) {
  EXPECT_THAT(tiles(3_GiB, PageUse::kAgain, {{Bytes(512_MiB).count(), 3}}),
              ElementsAre(512_MiB, 512_MiB, 512_MiB, 1_GiB, 512_MiB));
  // Smaller ones would cost more to map than new ones to make.
  EXPECT_THAT(tiles(1_GiB, PageUse::kAgain, {{Bytes(32_MiB).count(), 99}}), ElementsAre(1_GiB));
}

TEST(PagePlan, CopiedAndSharedPagesAreOneStageAtMost) {
  EXPECT_THAT(tiles(1_GiB + 2_MiB, PageUse::kCopied, {{Bytes(1_GiB).count(), 5}}),
              ElementsAre(512_MiB, 512_MiB, 2_MiB));
  EXPECT_THAT(tiles(100_MiB, PageUse::kShared), ElementsAre(64_MiB, 32_MiB, 4_MiB));
}

TEST(PagePlan, ALimitUnderEveryClassIsAClass) {
  EXPECT_THAT(tiles(10_MiB, PageUse::kAgain, {}, 4_MiB), ElementsAre(4_MiB, 4_MiB, 2_MiB));
  EXPECT_THAT(tiles(1_GiB, PageUse::kFirst, {{Bytes(1_GiB).count(), 1}}, 512_MiB),
              ElementsAre(512_MiB, 512_MiB));
}

class ArenaPages : public testing::Test {
 protected:
  void SetUp() override {
    device::SimOptions sim;
    sim.capacity = 139_GiB;
    device_ = std::move(device::make_sim_device(sim)).value();
    arena_ = std::move(Arena::make(*device_)).value();
  }
  void exchange(const std::string& out, const std::string& in, bool release_pages) {
    PauseOptions options;
    options.release_pages = release_pages;
    const auto done = arena_->exchange({&out, 1}, {&in, 1}, options);
    ASSERT_TRUE(done.ok()) << done.status().message();
  }
  /// A KV cache in one piece, and 270 tensors of Adam's states.
  void make_both() {
    ASSERT_TRUE(arena_->create("kv", 48_GiB).ok());
    const std::string kv = "kv";
    ASSERT_TRUE(arena_->pause({&kv, 1}).ok());
    ASSERT_TRUE(arena_->release_store().ok());
    for (int i = 0; i < 270; ++i)
      ASSERT_TRUE(arena_->create("optimizer", i % 3 == 0 ? 18_MiB : 68_MiB, Policy::kZero).ok());
  }
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ArenaPages, AnExchangeHoldsNoMoreThanTheLargerSideAndOneStage) {
  make_both();
  for (int cycle = 0; cycle < 3; ++cycle) {
    exchange("optimizer", "kv", true);
    exchange("kv", "optimizer", true);
    EXPECT_LE(arena_->stats().peak_physical, 48_GiB + 512_MiB) << "cycle " << cycle;
  }
  EXPECT_EQ(arena_->stats().page_store, Bytes(0));
}

TEST_F(ArenaPages, PagesThatAreKeptServeBothSidesAndDoNotPileUp) {
  make_both();
  for (int cycle = 0; cycle < 20; ++cycle) {
    exchange("optimizer", "kv", false);
    EXPECT_LE(arena_->stats().physical, 48_GiB) << "cycle " << cycle;
    exchange("kv", "optimizer", false);
    EXPECT_LE(arena_->stats().physical, 48_GiB) << "cycle " << cycle;
  }
  EXPECT_LE(arena_->stats().peak_physical, 48_GiB + 512_MiB);
  // All but odd rests came from the other side: 44 pages of 270 regions are not whole stages.
  const std::uint64_t creates = arena_->stats().driver_creates;
  exchange("optimizer", "kv", false);
  exchange("kv", "optimizer", false);
  EXPECT_LE(arena_->stats().driver_creates - creates, 40u);
}

TEST_F(ArenaPages, ANewRegionTakesThePagesThatAreKept) {
  ASSERT_TRUE(arena_->create("weights", 512_MiB).ok());
  ASSERT_TRUE(arena_->create("weights", 512_MiB).ok());
  const std::string weights = "weights";
  ASSERT_TRUE(arena_->pause({&weights, 1}).ok());
  const std::uint64_t creates = arena_->stats().driver_creates;
  ASSERT_TRUE(arena_->create("kv", 1_GiB).ok());
  EXPECT_EQ(arena_->stats().driver_creates, creates);
  EXPECT_EQ(arena_->stats().physical, 1_GiB);
}

/// Driver calls in their order, as text: "create map create map".
class Calls final : public trace::EventSink {
 public:
  void record(const trace::Event& event) override {
    using trace::EventKind;
    switch (event.kind) {
      case EventKind::kCreate:
        return add("create");
      case EventKind::kMap:
        return add("map");
      case EventKind::kUnmap:
        return add("unmap");
      case EventKind::kRelease:
        return add("release");
      default:
        return;
    }
  }
  std::uint32_t intern(std::string_view) override { return 0; }
  std::string take() { return std::exchange(text_, {}); }

 private:
  void add(const char* call) { text_ += (text_.empty() ? "" : " ") + std::string(call); }
  std::string text_;
};

// The driver clears released memory in the background: pages are released as they are unmapped, and
// mapped as they are created. Pages that are kept move together.
TEST_F(ArenaPages, OnePageAtATimeToAndFromTheDriver) {
  Calls calls;
  Options options;
  options.events = &calls;
  arena_ = std::move(Arena::make(*device_, options)).value();
  ASSERT_TRUE(arena_->create("kv", 3_GiB, Policy::kDiscard).ok());
  ASSERT_TRUE(arena_->pause({}, {.release_pages = true}).ok());
  (void)calls.take();
  ASSERT_TRUE(arena_->resume({}).ok());
  EXPECT_EQ(calls.take(), "create map create map create map");
  ASSERT_TRUE(arena_->pause({}, {.release_pages = true}).ok());
  EXPECT_EQ(calls.take(), "unmap release unmap release unmap release");
  ASSERT_TRUE(arena_->resume({}).ok());
  (void)calls.take();
  ASSERT_TRUE(arena_->pause({}).ok());
  EXPECT_EQ(calls.take(), "unmap");
  ASSERT_TRUE(arena_->resume({}).ok());
  EXPECT_EQ(calls.take(), "map");
  arena_.reset();  // before `calls`
}

// As many driver calls as a loop over the regions makes, one wait for the device before a pause and
// one question for free memory before a resume.
TEST_F(ArenaPages, MovesMakeTheDriverCallsOfAPlainLoopAndTwoMore) {
  using device::Call;
  arena_.reset();
  const auto counter = device::make_fault_device(*device_);
  arena_ = std::move(Arena::make(*counter, {})).value();
  constexpr std::uint64_t kRegions = 16;
  for (std::uint64_t i = 0; i < kRegions; ++i)
    ASSERT_TRUE(arena_->create("kv", 1_GiB, Policy::kDiscard).ok());
  const auto count = [&](std::optional<Call> kind, bool pause) {
    // Back to where the counted move begins.
    if (pause) {
      EXPECT_TRUE(arena_->resume({}).ok());
    } else {
      EXPECT_TRUE(arena_->pause({}, {.release_pages = true}).ok());
    }
    counter->arm({0, kind});
    if (pause) {
      EXPECT_TRUE(arena_->pause({}, {.release_pages = true}).ok());
    } else {
      EXPECT_TRUE(arena_->resume({}).ok());
    }
    return counter->calls();
  };
  EXPECT_EQ(count({}, true), 2 * kRegions + 1);
  EXPECT_EQ(count(Call::kUnmap, true), kRegions);
  EXPECT_EQ(count(Call::kRelease, true), kRegions);
  EXPECT_EQ(count(Call::kSynchronize, true), 1u);
  EXPECT_EQ(count({}, false), 3 * kRegions + 1);
  EXPECT_EQ(count(Call::kCreate, false), kRegions);
  EXPECT_EQ(count(Call::kMap, false), kRegions);
  EXPECT_EQ(count(Call::kSetAccess, false), kRegions);
  EXPECT_EQ(count(Call::kMemory, false), 1u);
  arena_.reset();  // before `counter`
}

TEST_F(ArenaPages, RegionsUpToAQuarterOfAGigabyteSharePages) {
  for (int i = 0; i < 198; ++i) ASSERT_TRUE(arena_->create("weights", 74_MiB, Policy::kZero).ok());
  EXPECT_GE(device_->usage().maps, 198u * 2);
  ASSERT_TRUE(arena_->pause({}).ok());
  ASSERT_TRUE(arena_->resume({}).ok());
  EXPECT_LE(device_->usage().maps, 45u);
}

}  // namespace
}  // namespace neap::arena
