// The schedule as it is executed: moves are the plan's and contents are kept.
#include "bridge/schedule_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/residency/least_capacity.h"
#include "unit/bridge/shadow.h"

namespace neap::bridge {
namespace {

MemoryPlan random_plan(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  MemoryPlan plan;
  plan.granularity = kGranule;
  plan.overlap = pick(3) > 0;
  const std::size_t phases = (plan.overlap ? 4 : 2) + pick(4);
  for (std::size_t p = 0; p < phases; ++p)
    plan.phases.push_back(
        {plan::some_phase(p), kGranule * pick(3), Bytes(), static_cast<double>(pick(3))});
  if (pick(3) > 0) {
    const std::size_t first = pick(phases);
    plan.loops.push_back(
        {first, first + pick(phases - first), static_cast<std::int64_t>(1 + pick(4))});
    for (std::size_t p = first; p <= plan.loops[0].last; ++p)
      plan.phases[p].times = plan.loops[0].times;
  }
  const std::size_t tags = 2 + pick(4);
  for (std::size_t t = 0; t < tags; ++t) {
    std::vector<std::uint64_t> regions;
    for (std::size_t r = 0; r <= pick(4); ++r) regions.push_back(1 + pick(6));
    TagPlan tag = make_tag(plan::some_tag(t), regions, static_cast<Contents>(pick(3)));
    for (std::size_t p = 0; p < phases; ++p) {
      const bool needs = pick(plan.overlap ? 3 : 2) == 0 || p == t % phases;
      tag.need.push_back(needs ? Need::kNeed : Need::kOptional);
      tag.write.push_back(needs && tag.contents != Contents::kFrozen && pick(2) == 0);
    }
    plan.tags.push_back(std::move(tag));
  }
  return plan;
}

// What a library takes for the whole run: no region of the arena, in no move.
TagPlan outside(const MemoryPlan& plan) {
  TagPlan tag;
  tag.id = {spec::TagKind::kPeers};
  tag.contents = Contents::kScratch;
  tag.bytes = kGranule * 3;
  tag.need.assign(plan.phases.size(), Need::kNeed);
  tag.write.assign(plan.phases.size(), false);
  return tag;
}

std::vector<std::pair<std::size_t, bool>> visits_of(const MemoryPlan& plan) {
  std::vector<std::pair<std::size_t, bool>> visits;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    visits.emplace_back(p, false);
    for (const plan::Loop& loop : plan.loops) {
      for (std::int64_t round = 1; loop.last == p && round < loop.times; ++round)
        for (std::size_t q = loop.first; q <= loop.last; ++q) visits.emplace_back(q, true);
    }
  }
  return visits;
}

void expect_planned(const std::vector<MoveRecord>& done, const std::vector<plan::Move>& planned) {
  ASSERT_EQ(done.size(), planned.size());
  for (std::size_t i = 0; i < planned.size(); ++i) {
    EXPECT_EQ(done[i].kind, planned[i].kind);
    EXPECT_EQ(done[i].tag, planned[i].tag);
    EXPECT_EQ(done[i].behind, planned[i].behind);
    EXPECT_EQ(done[i].copied, planned[i].copies ? planned[i].bytes : Bytes())
        << to_string(planned[i].tag);
  }
}

void run_cycles(MemoryPlan& plan, std::size_t& behind) {
  const auto device = host_device(plan.capacity - plan.outside_bytes());
  const auto arena = value_or_throw(arena::Arena::make(*device));
  ScheduleExecutor executor(*arena, plan, device::StreamId::kDefault, [] {});
  Shadow shadow(plan);
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    (void)executor.bring({plan.tags[t].id});
    for (std::size_t r = 0; r < plan.tags[t].regions.size(); ++r) shadow.write(executor, t, r);
    (void)executor.move_to(ScheduleExecutor::Set(plan.tags.size(), false));
  }
  for (int cycle = 0; cycle < 3; ++cycle) {
    Bytes moved;
    for (const auto& [p, again] : visits_of(plan)) {
      const Transition done = executor.enter(p);
      EXPECT_EQ(executor.resident(), plan.schedule[p].resident);
      ASSERT_NO_FATAL_FAILURE(work(executor, plan, shadow, p));
      std::vector<MoveRecord> moves = done.moves;
      ASSERT_TRUE(executor.finish_copies(moves).ok());
      for (const MoveRecord& move : moves) moved += move.copied;
      behind += moves.size() - done.moves.size();
      if (cycle == 0) continue;  // begins with copies that the steady one does not make
      EXPECT_TRUE(done.scheduled);
      expect_planned(moves, again ? plan.schedule[p].again : plan.schedule[p].moves);
    }
    if (cycle > 0) {
      EXPECT_EQ(moved, plan.moved_per_step);
    }
  }
  EXPECT_LE(arena->stats().peak_physical + plan.outside_bytes(), plan.capacity);
}

TEST(ScheduleExecution, RandomPlansRunAsPlannedUnderTheirCapacity) {
  std::mt19937_64 random(20261122);
  int moving = 0;
  std::size_t behind = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    MemoryPlan plan = random_plan(random);
    if (i % 3 == 0) plan.tags.push_back(outside(plan));
    const Bytes least = plan::min_capacity(plan);
    plan.capacity = std::max(least + kGranule * (random() % 12), kGranule);
    ASSERT_TRUE(plan::solve_residency(plan, spec::Residency::kAuto).ok());
    moving += plan.moved_per_step.is_zero() ? 0 : 1;
    for (std::size_t p = 0; i % 3 == 0 && p < plan.phases.size(); ++p)
      EXPECT_TRUE(plan.schedule[p].resident.back());
    ASSERT_NO_FATAL_FAILURE(run_cycles(plan, behind));
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(moving, 70);
  EXPECT_GT(behind, 25U);
}

// Phases train (weights, optimizer) and validate (weights) in a cycle whose steps mostly skip the second.
MemoryPlan validated_training(Bytes capacity) {
  MemoryPlan plan;
  plan.granularity = kGranule;
  plan.capacity = capacity;
  plan.phases = {{PhaseId::kTrain, Bytes(), Bytes()}, {PhaseId::kValidate, kGranule * 4, Bytes()}};
  plan.tags = {make_tag(plan::kWeights, {2}, Contents::kLive),
               make_tag(plan::kOptimizer, {4}, Contents::kLive)};
  plan.tags[0].need = {Need::kNeed, Need::kNeed};
  plan.tags[1].need = {Need::kNeed, Need::kOptional};
  plan.tags[0].write = plan.tags[1].write = {true, false};
  EXPECT_TRUE(plan::solve_residency(plan, spec::Residency::kAuto).ok());
  return plan;
}

TEST(ScheduleExecution, SkippingAPhaseIsScheduledWhereItWouldMoveNothing) {
  for (const bool moves : {false, true}) {
    SCOPED_TRACE(moves);
    const MemoryPlan plan = validated_training(kGranule * (moves ? 6 : 10));
    EXPECT_EQ(!plan.schedule[1].moves.empty(), moves);
    const auto device = host_device(plan.capacity);
    const auto arena = value_or_throw(arena::Arena::make(*device));
    ScheduleExecutor executor(*arena, plan, device::StreamId::kDefault, [] {});
    (void)executor.enter(0);
    EXPECT_EQ(executor.enter(0).scheduled, !moves);
    (void)executor.enter(1);
    EXPECT_TRUE(executor.enter(0).scheduled);
  }
}

}  // namespace
}  // namespace neap::bridge
