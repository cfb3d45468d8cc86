// What goes wrong at the edges: failures in the middle, pages that someone else still sees, hostile
// sizes, forks, and listeners that call back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "arena/address_space.h"
#include "arena/arena.h"
#include "device/fault/fault_device.h"
#include "device/sim/sim_device.h"
#include "unit/arena/arena_edges.h"

namespace neap::arena {
namespace {

using device::Call;
using device::FaultPlan;

// --- exchange half-way --------------------------------------------------------------------------

class ArenaExchange : public ArenaEdges {
 protected:
  /// `out` and `in` of 16 MiB in pages of 1 MiB: four stages each.
  void make_both(Policy policy, const Options& options = {}) {
    open(options);
    for (const char* tag : {"out", "in"}) arena_->set_page_limit(tag, 1_MiB);
    in_ = create("in", 16_MiB, Policy::kHost);
    paint(in_, 1);
    pause({"in"});
    out_ = create("out", 16_MiB, policy);
    paint(out_, 2);
  }
  /// Runs `then` when all has moved, and refuses.
  Status refuse_at_the_end(const PauseOptions& options = {}, std::function<void()> then = {}) {
    Callbacks callbacks;
    callbacks.after_map = [&](const RegionInfo&) -> Status {
      if (then) then();
      return {ErrorCode::kBusy, "refused"};
    };
    const auto listener = arena_->add_callbacks("in", callbacks);
    const auto done = arena_->exchange(tags({"out"}), tags({"in"}), options);
    arena_->remove_callbacks(listener);
    return done.ok() ? Status() : done.status();
  }
  RegionInfo in_, out_;
};

TEST_F(ArenaExchange, ContentsThatWereNotCopiedAgainComeBack) {
  make_both(Policy::kHost);
  pause({"out"});
  ASSERT_TRUE(arena_->release_store().ok());
  resume({"out"});
  PauseOptions options;
  options.unchanged = true;
  EXPECT_EQ(refuse_at_the_end(options).code(), ErrorCode::kBusy);
  EXPECT_EQ(arena_->info(out_.id)->state, State::kResident);
  EXPECT_TRUE(painted(out_, 2));
  resume({"in"});
  EXPECT_TRUE(painted(in_, 1));
  expect_nothing_left();
}

TEST_F(ArenaExchange, GenerationTellsOfNewPagesAfterGoingBack) {
  for (const Policy policy : {Policy::kHost, Policy::kDisk}) {
    make_both(policy);
    std::vector<std::uint64_t> heard;
    Callbacks callbacks;
    callbacks.after_map = [&](const RegionInfo& region) {
      heard.push_back(region.generation);
      return Status();
    };
    arena_->add_callbacks("out", callbacks);
    EXPECT_EQ(refuse_at_the_end().code(), ErrorCode::kBusy);
    EXPECT_TRUE(painted(out_, 2));
    EXPECT_EQ(arena_->info(out_.id)->generation, 2u) << "its pages went to the other tag";
    EXPECT_THAT(heard, testing::ElementsAre(2u));
    // Where no page had changed hands, nothing is new.
    faults_->arm({.fail_at = 1, .only = Call::kQueueMark});
    EXPECT_FALSE(arena_->exchange(tags({"out"}), tags({"in"})).ok());
    faults_->arm({});
    EXPECT_TRUE(painted(out_, 2));
    expect_nothing_left();
  }
}

TEST_F(ArenaExchange, PagesOfBothSidesAreKnownWhenGoingBackFails) {
  for (const Policy policy : {Policy::kHost, Policy::kDisk, Policy::kDiscard}) {
    for (std::uint64_t room = 0; room <= 16; ++room) {
      SCOPED_TRACE(std::string(to_string(policy)) + ", room for " + std::to_string(room));
      Options options;
      options.page_store_budget = Bytes(0);
      make_both(policy, options);
      const Status status = refuse_at_the_end({}, [&] {
        FaultPlan plan;
        plan.fail_at = room + 1;
        plan.only = Call::kCreate;
        plan.stays = true;
        plan.code = ErrorCode::kOutOfDeviceMemory;
        faults_->arm(plan);
      });
      EXPECT_FALSE(status.ok());
      faults_->arm({});
      EXPECT_EQ(arena_->stats().physical, mapped() + arena_->stats().page_store);
      EXPECT_EQ(arena_->stats().physical, device_->usage().page_bytes);
      resume({});
      EXPECT_TRUE(painted(in_, 1));
      EXPECT_TRUE(policy == Policy::kDiscard || painted(out_, 2));
      expect_nothing_left();
      if (testing::Test::HasFailure()) return;
    }
  }
}

// --- listeners ----------------------------------------------------------------------------------

TEST_F(ArenaEdges, AListenerThatFailsAfterAFailedPauseLeavesTheOthersAlone) {
  create("a", 1_MiB, Policy::kHost);
  std::vector<std::string> heard;
  bool second_fails = false;
  Callbacks first;
  first.before_unmap = [&](const RegionInfo&) {
    heard.emplace_back("before");
    return Status();
  };
  first.after_map = [&](const RegionInfo&) {
    heard.emplace_back("after");
    return Status();
  };
  Callbacks second;
  second.after_map = [&](const RegionInfo&) -> Status {
    if (second_fails) return {ErrorCode::kBusy, "cannot register"};
    return {};
  };
  arena_->add_callbacks("a", first);
  arena_->add_callbacks("a", second);
  second_fails = true;
  faults_->arm({.fail_at = 1, .only = Call::kUnmap});
  EXPECT_FALSE(arena_->pause(tags({"a"})).ok());
  EXPECT_THAT(heard, testing::ElementsAre("before", "after")) << "the region is there";
}

TEST_F(ArenaEdges, AListenerThatMovesItsOwnTagIsRefused) {
  const RegionInfo a = create("a", 1_MiB, Policy::kHost);
  create("b", 1_MiB, Policy::kHost);
  std::vector<ErrorCode> answers;
  Callbacks callbacks;
  callbacks.before_unmap = [&](const RegionInfo&) {
    answers.push_back(arena_->pause(tags({"a"})).status().code());
    answers.push_back(arena_->resume(tags({"a"})).status().code());
    answers.push_back(arena_->exchange(tags({"b"}), tags({"a"})).status().code());
    answers.push_back(arena_->destroy(a.id).code());
    answers.push_back(arena_->shrink(a.id, Bytes(0), 1_MiB).status().code());
    answers.push_back(arena_->grow(a.id, Bytes(0), 1_MiB).status().code());
    answers.push_back(arena_->prepare(tags({"a"})).code());
    answers.push_back(arena_->alias("c", a.id).status().code());
    return Status();
  };
  arena_->add_callbacks("a", callbacks);
  pause({"a"});
  EXPECT_THAT(answers, testing::AllOf(testing::SizeIs(8), testing::Each(ErrorCode::kBusy)));
  EXPECT_EQ(arena_->info(a.id)->state, State::kPaused);
  arena_->add_callbacks("b", {.before_unmap = {}, .after_map = {}});
  // Another tag that stands still may be moved.
  Callbacks other;
  other.after_map = [&](const RegionInfo&) { return arena_->pause(tags({"b"})).status(); };
  arena_->add_callbacks("a", other);
  resume({"a"});
  EXPECT_EQ(arena_->regions("b").front().state, State::kPaused);
}

TEST_F(ArenaEdges, ARemovedListenerIsNotCalledAnyMore) {
  create("a", 1_MiB, Policy::kHost);
  std::atomic<bool> inside = false, gone = false, called_after = false;
  Callbacks callbacks;
  callbacks.before_unmap = [&](const RegionInfo&) {
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    called_after = gone.load();
    return Status();
  };
  const auto id = arena_->add_callbacks("a", callbacks);
  std::thread mover([&] { EXPECT_TRUE(arena_->pause(tags({"a"})).ok()); });
  while (!inside) std::this_thread::yield();
  arena_->remove_callbacks(id);
  gone = true;
  mover.join();
  EXPECT_FALSE(called_after) << "what it captured may be gone";
  // From inside itself it can be removed, too.
  std::uint64_t own = 0;
  Callbacks once;
  once.after_map = [&](const RegionInfo&) {
    arena_->remove_callbacks(own);
    return Status();
  };
  own = arena_->add_callbacks("a", once);
  resume({"a"});
}

TEST_F(ArenaEdges, GrowTellsWhatIsMapped) {
  arena_->set_page_limit("kv", 1_MiB);
  const RegionInfo kv = create("kv", 8_MiB);
  ASSERT_TRUE(arena_->shrink(kv.id, 2_MiB, 4_MiB).ok());
  Bytes heard;
  Callbacks callbacks;
  callbacks.after_map = [&](const RegionInfo& region) {
    heard = region.mapped;
    return Status();
  };
  arena_->add_callbacks("kv", callbacks);
  ASSERT_TRUE(arena_->grow(kv.id, 2_MiB, 1_MiB).ok());
  EXPECT_EQ(heard, 5_MiB);
}

// --- memory -------------------------------------------------------------------------------------

TEST_F(ArenaEdges, ResumeWithoutRoomKeepsNothingThatItCreated) {
  arena_->set_page_limit("a", 1_MiB);
  create("a", 40_MiB, Policy::kHost);
  pause({"a"}, {.release_pages = true});
  auto other = std::move(Arena::make(*device_)).value();
  const auto hog = other->create("hog", 40_MiB);
  ASSERT_TRUE(hog.ok());
  const Bytes before = arena_->stats().physical;
  EXPECT_EQ(arena_->resume(tags({"a"})).status().code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(arena_->stats().physical, before) << "others cannot have what it holds now";
  EXPECT_EQ(arena_->create("b", 30_MiB).status().code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(arena_->stats().physical, before);
  EXPECT_TRUE(other->create("small", 20_MiB).ok());
  other.reset();
}

TEST_F(ArenaEdges, KeptPagesStayKeptWhenThereIsNoRoom) {
  arena_->set_page_limit("a", 1_MiB);
  arena_->set_page_limit("b", 1_MiB);
  create("a", 10_MiB);
  pause({"a"});
  auto other = std::move(Arena::make(*device_)).value();
  ASSERT_TRUE(other->create("hog", 30_MiB).ok());
  EXPECT_FALSE(arena_->create("b", 40_MiB).ok());
  EXPECT_EQ(arena_->stats().page_store, 10_MiB);
  other.reset();
}

TEST_F(ArenaEdges, TheLongestWaitIsLong) {
  create("a", 40_MiB, Policy::kHost);
  pause({"a"}, {.release_pages = true});
  auto other = std::move(Arena::make(*device_)).value();
  const auto hog = other->create("hog", 40_MiB);
  ASSERT_TRUE(hog.ok());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(other->destroy(hog->id, true).ok());
  });
  ResumeOptions options;
  options.wait = std::chrono::milliseconds::max();
  const auto done = arena_->resume(tags({"a"}), options);
  EXPECT_TRUE(done.ok()) << done.status().message();
  later.join();
  other.reset();
}

TEST_F(ArenaEdges, SizesBeyondTheDeviceAreRefusedAtOnce) {
  arena_->set_page_limit("a", 64_KiB);
  const auto usage = device_->usage();
  for (const Bytes size : {65_MiB, 1_TiB, Bytes(1ull << 56)}) {
    const auto made = arena_->create("a", size);
    EXPECT_EQ(made.status().code(), ErrorCode::kOutOfDeviceMemory) << made.status().message();
    ASSERT_NE(made.status().shortage(), nullptr);
    EXPECT_EQ(made.status().shortage()->need, size);
    EXPECT_EQ(device_->usage(), usage) << "no addresses are kept for it";
  }
  for (const Bytes size : {Bytes(0), Bytes(~0ull), Bytes((1ull << 56) + 1)}) {
    EXPECT_EQ(arena_->create("a", size).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(arena_->create_paused("a", size).status().code(), ErrorCode::kInvalidArgument);
  }
  const RegionInfo a = create("a", 1_MiB);
  for (const Bytes hostile : {Bytes(~0ull), Bytes(~0ull - 1), Bytes(1ull << 63), 1_MiB + 1_B}) {
    EXPECT_EQ(arena_->shrink(a.id, hostile, hostile).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(arena_->shrink(a.id, 64_KiB, hostile).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(arena_->grow(a.id, hostile, 64_KiB).status().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(arena_->info(a.id)->mapped, 1_MiB);
}

TEST_F(ArenaEdges, AnExportedPageThatTheDriverKeepsServesNobody) {
  const RegionInfo a = create("a", 3_MiB);
  auto pages = arena_->export_pages(a.id);
  ASSERT_TRUE(pages.ok());
  for (const ExportedPage& page : *pages) ::close(page.descriptor);
  faults_->arm({.fail_at = 1, .only = Call::kRelease});
  pause({"a"});
  faults_->arm({});
  EXPECT_EQ(arena_->stats().physical, 3_MiB) << "it is still held";
  const auto hits = arena_->stats().store_hits;
  create("b", 3_MiB);
  EXPECT_EQ(arena_->stats().store_hits, hits);
  ASSERT_TRUE(arena_->release_store().ok());
  EXPECT_EQ(arena_->stats().physical, 3_MiB) << "the driver was asked again";
  expect_nothing_left();
}

// --- the process --------------------------------------------------------------------------------

TEST(AddressSpaceTest, AZoneThatTheDeviceKeepsIsGivenBackLater) {
  const auto sim = std::move(device::make_sim_device()).value();
  const auto fault = device::make_fault_device(*sim);
  AddressSpace space(*fault);
  const auto first = space.take(1_GiB);
  const auto second = space.take(8_GiB);  // a zone of its own
  ASSERT_TRUE(first.ok() && second.ok());
  space.give(*first, 1_GiB);
  space.give(*second, 8_GiB);
  fault->arm({1, device::Call::kUnreserve});
  EXPECT_FALSE(space.clear().ok());
  EXPECT_TRUE(fault->fired());
  EXPECT_EQ(fault->calls(), 2u) << "the other zone is given back";
  EXPECT_FALSE(space.empty());
  fault->arm({0, device::Call::kUnreserve});
  EXPECT_TRUE(space.clear().ok());
  EXPECT_EQ(fault->calls(), 1u);
  EXPECT_TRUE(space.empty());
}

TEST_F(ArenaEdges, AForkedChildsCopyEndsQuietly) {
  const RegionInfo a = create("a", 4_MiB, Policy::kHost);
  create("d", 4_MiB, Policy::kDisk);
  pause({});
  resume({});  // threads of copy queues and of the disk have been there
  pause({"a"});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    bool refused = arena_->create("b", 1_MiB).status().code() == ErrorCode::kUnsupported;
    refused = refused && arena_->find(a.address).status().code() == ErrorCode::kUnsupported;
    refused = refused && arena_->info(a.id).status().code() == ErrorCode::kUnsupported;
    refused = refused && !arena_->look_up(a.address) && arena_->regions().empty();
    arena_->give_page("x", device::PageId{1}, 1_MiB);
    arena_->set_page_store_budget(Bytes(0));
    arena_->set_backup_options(false, Bytes(0), "");
    arena_->remove_callbacks(arena_->add_callbacks("", {}));
    (void)arena_->stats();
    arena_.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  resume({"a"});
  expect_nothing_left();
}

}  // namespace
}  // namespace neap::arena
