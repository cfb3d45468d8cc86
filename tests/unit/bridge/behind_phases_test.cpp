// Moves that run while a phase computes: when they begin and end, and what a failure leaves.
#include <gtest/gtest.h>

#include <optional>

#include "device/fault/fault_device.h"
#include "unit/bridge/shadow.h"

namespace neap::bridge {
namespace {

// A long phase that reads weights, a short one that needs other tags, and training. Behind the long one the reward model
// comes and a copy of the weights is made.
struct Behind {
  Behind() {
    plan.granularity = kGranule;
    plan.overlap = true;
    plan.capacity = kGranule * 16;
    plan.phases = {{PhaseId::kActorLogProbs, Bytes(), Bytes(), 1.0},
                   {PhaseId::kRewards, kGranule * 8, Bytes(), 1.0},
                   {PhaseId::kTrain, kGranule * 8, Bytes(), 1.0}};
    plan.tags = {make_tag(plan::kWeights, {8}, Contents::kLive),
                 make_tag(plan::kRewardWeights, {8}, Contents::kFrozen)};
    plan.tags[0].need = {Need::kNeed, Need::kOptional, Need::kNeed};
    plan.tags[0].write = {false, false, true};
    plan.tags[1].need = {Need::kOptional, Need::kNeed, Need::kOptional};
    plan.tags[1].write = {false, false, false};
    EXPECT_TRUE(plan::solve_residency(plan, spec::Residency::kAuto).ok());
    real = host_device(plan.capacity);
    fault = device::make_fault_device(*real);
    arena::Options options;
    options.touch_threads = 1;
    arena = value_or_throw(arena::Arena::make(*fault, options));
    executor.emplace(*arena, plan, device::StreamId::kDefault, [] {});
    shadow.emplace(plan);
    for (std::size_t t = 0; t < 2; ++t) {
      (void)executor->bring({plan.tags[t].id});
      shadow->write(*executor, t, 0);
      (void)executor->move_to({false, false});
    }
    for (std::size_t p = 0; p < 3; ++p) phase(p);  // the steady cycle
  }
  ~Behind() { fault->arm({}); }
  void phase(std::size_t p) {
    (void)executor->enter(p);
    EXPECT_NO_FATAL_FAILURE(work(*executor, plan, *shadow, p));
    std::vector<MoveRecord> done;
    EXPECT_TRUE(executor->finish_copies(done).ok());
  }
  [[nodiscard]] arena::State state(std::size_t tag) const {
    return arena->regions(plan.tags[tag].name()).front().state;
  }

  MemoryPlan plan;
  std::unique_ptr<device::HostDevice> real;
  std::unique_ptr<device::FaultDevice> fault;
  std::unique_ptr<arena::Arena> arena;
  std::optional<ScheduleExecutor> executor;
  std::optional<Shadow> shadow;
};

TEST(BehindPhases, CopiesBeginWithThePhaseAndEndWithIt) {
  Behind b;
  const Transition done = b.executor->enter(0);
  EXPECT_TRUE(done.scheduled);
  EXPECT_EQ(b.state(1), arena::State::kResuming);
  EXPECT_EQ(b.executor->persistent(), kGranule * 16) << "what comes counts from the beginning";
  std::vector<MoveRecord> behind;
  ASSERT_TRUE(b.executor->finish_copies(behind).ok());
  ASSERT_EQ(behind.size(), 2U);
  for (const MoveRecord& move : behind) {
    EXPECT_TRUE(move.behind);
    EXPECT_EQ(move.copied, kGranule * 8);
    EXPECT_GT(move.copy_seconds, 0);
    EXPECT_GT(move.visible_seconds, 0);
  }
  EXPECT_EQ(b.state(1), arena::State::kResident);
  const Transition next = b.executor->enter(1);
  EXPECT_TRUE(next.scheduled);
  EXPECT_EQ(next.copied(), Bytes()) << "the weights leave without a copy";
}

TEST(BehindPhases, WhateverMovesNextWaitsForThem) {
  Behind b;
  (void)b.executor->enter(0);
  (void)b.executor->move_to({true, false});  // as for a checkpoint
  EXPECT_EQ(b.state(1), arena::State::kPaused);
  (void)b.executor->enter(0);
  (void)b.executor->enter(1);
  EXPECT_TRUE(b.shadow->holds(*b.executor, 1, 0));
  std::vector<MoveRecord> done;
  ASSERT_TRUE(b.executor->finish_copies(done).ok());
  EXPECT_GE(done.size(), 3U) << "what was waited for meanwhile is reported";
}

TEST(BehindPhases, AWriteMeanwhileMakesTheHostCopyStale) {
  Behind b;
  (void)b.executor->enter(0);
  (void)b.executor->bring({plan::kWeights});  // for a caller that writes
  b.shadow->write(*b.executor, 0, 0);
  b.phase(1);
  b.phase(2);
  EXPECT_TRUE(b.shadow->holds(*b.executor, 0, 0));
}

TEST(BehindPhases, EveryDeviceCallMayFailAndNothingIsLost) {
  int at_the_end = 0;
  for (std::uint64_t k = 1;; ++k) {
    SCOPED_TRACE(format("call {}", k));
    Behind b;
    b.fault->arm({k, std::nullopt, ErrorCode::kDriver, false});
    Status entered;
    try {
      (void)b.executor->enter(0);
    } catch (const Error& e) {
      entered = e.status();
    }
    std::vector<MoveRecord> done;
    const Status finished = b.executor->finish_copies(done);
    const bool fired = b.fault->fired();
    b.fault->arm({});
    if (!fired) break;
    const std::string& message = finished.message();
    if (!finished.ok()) {
      ++at_the_end;
      EXPECT_TRUE(message.find("weights") != std::string::npos ||
                  message.find("reward") != std::string::npos)
          << message;
    }
    // The cycle goes on from whatever state that left.
    for (const std::size_t p : {0U, 1U, 2U, 0U, 1U}) b.phase(p);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(at_the_end, 2);
}

}  // namespace
}  // namespace neap::bridge
