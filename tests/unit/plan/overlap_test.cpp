// Copies behind phases: what begins early, what it costs, and that every phase keeps to its capacity meanwhile.
#include "plan/residency/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "plan/residency/least_capacity.h"
#include "unit/plan/small_plans.h"

namespace neap::plan {
namespace {

constexpr double kMib = 1048576;

// Like PPO: a long generation, short passes, and a training phase in which the reward model has no room.
MemoryPlan generation() {
  MemoryPlan plan;
  plan.overlap = true;
  plan.capacity = 410_MiB;
  plan.link = {1000 * kMib, 1000 * kMib, 2000 * kMib, 0};
  plan.phases = {{PhaseId::kGenerate, 10_MiB, 9_MiB},
                 {PhaseId::kActorLogProbs, 10_MiB, 9_MiB},
                 {PhaseId::kRewards, 10_MiB, 9_MiB},
                 {PhaseId::kTrain, 20_MiB, 9_MiB}};
  plan.phases[0].seconds = 1;
  plan.phases[1].seconds = 0.01;
  plan.phases[2].seconds = 0.01;
  plan.phases[3].seconds = 0.3;
  plan.tags = {tag(kWeights, 100_MiB, "NN.N", "...w", Contents::kLive),
               tag(kOptimizer, 200_MiB, "...N", "...w", Contents::kLive),
               tag(kRewardWeights, 100_MiB, "..N.", "....", Contents::kFrozen)};
  return plan;
}
MemoryPlan solved(MemoryPlan plan) {
  EXPECT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  return plan;
}
std::vector<std::string> behind(const MemoryPlan& plan, std::size_t phase) {
  std::vector<std::string> tags;
  for (const Move& move : plan.schedule[phase].moves) {
    if (move.behind)
      tags.push_back((move.kind == Move::Kind::kBackup ? "-" : "+") + to_string(move.tag));
  }
  return tags;
}

TEST(Overlap, WhatAShortPhaseNeedsComesBehindTheLongOneBeforeIt) {
  const MemoryPlan plan = solved(generation());
  EXPECT_THAT(behind(plan, 0), testing::ElementsAre("+reward.weights"));
  EXPECT_EQ(plan.moved_per_step, 100_MiB);
  EXPECT_NEAR(plan.copy_seconds, 0.1, 1e-9);
  EXPECT_NEAR(plan.move_seconds, 0, 1e-9);
  // It is counted from the phase's beginning on.
  EXPECT_EQ(plan.schedule[0].persistent, 400_MiB);
  EXPECT_EQ(plan.peak, 410_MiB);
}

TEST(Overlap, WithoutRoomInTheLongPhaseItComesBetweenPhases) {
  MemoryPlan tight = generation();
  tight.phases[0].transient = 11_MiB;
  const MemoryPlan plan = solved(tight);
  for (std::size_t p = 0; p < plan.phases.size(); ++p) EXPECT_TRUE(behind(plan, p).empty()) << p;
  EXPECT_NEAR(plan.move_seconds, 0.1, 1e-9);
}

TEST(Overlap, SwitchedOffNothingRunsBehindAPhase) {
  MemoryPlan off = generation();
  off.overlap = false;
  const MemoryPlan plan = solved(off);
  for (std::size_t p = 0; p < plan.phases.size(); ++p) EXPECT_TRUE(behind(plan, p).empty()) << p;
  EXPECT_NEAR(plan.move_seconds, 0.1, 1e-9);
  EXPECT_EQ(plan.move_seconds, plan.copy_seconds);
}

TEST(Overlap, WhatIsReadBeforeItLeavesIsCopiedMeanwhile) {
  // Weights that training wrote, which a phase reads and the next one has no room for.
  MemoryPlan plan = generation();
  plan.capacity = 300_MiB;
  plan.phases = {{PhaseId::kActorLogProbs, 10_MiB, 9_MiB},
                 {PhaseId::kValues, 260_MiB, 9_MiB},
                 {PhaseId::kTrain, 10_MiB, 9_MiB}};
  for (PhasePlan& phase : plan.phases) phase.seconds = 1;
  plan.tags = {tag(kWeights, 200_MiB, "N.N", "..w", Contents::kLive)};
  plan = solved(plan);
  EXPECT_THAT(behind(plan, 0), testing::ElementsAre("-actor.weights"));
  ASSERT_EQ(plan.schedule[1].moves.size(), 1U);
  EXPECT_FALSE(plan.schedule[1].moves[0].copies);
  EXPECT_EQ(plan.moved_per_step, 400_MiB);
  EXPECT_NEAR(plan.copy_seconds, 0.4, 1e-9);
  EXPECT_NEAR(plan.move_seconds, 0.2, 1e-9);
}

TEST(Overlap, ALinkIsGivenAwayOnce) {
  MemoryPlan plan = generation();
  plan.capacity = 500_MiB;
  plan.phases[0].seconds = 0.16;
  plan.phases[3].transient = 120_MiB;
  plan.tags.push_back(tag(kReferenceWeights, 90_MiB, ".N..", "....", Contents::kFrozen));
  plan = solved(plan);
  EXPECT_THAT(behind(plan, 0),
              testing::UnorderedElementsAre("+reward.weights", "+reference.weights"));
  EXPECT_NEAR(plan.copy_seconds, 0.19, 1e-9);
  EXPECT_NEAR(plan.move_seconds, 0.03, 1e-9);
}

TEST(Overlap, WhatAPhaseHidesLessThanHalfOfStaysBetweenPhases) {
  MemoryPlan plan = generation();
  plan.phases[0].seconds = 0.04;
  plan = solved(plan);
  EXPECT_TRUE(behind(plan, 0).empty());
  EXPECT_NEAR(plan.move_seconds, 0.1, 1e-9);
}

TEST(Overlap, WhatAPhaseFetchesNeedsTheLink) {
  MemoryPlan plan = generation();
  plan.phases[0].fetched =
      Bytes(static_cast<std::uint64_t>(plan.phases[0].seconds * plan.link.to_device));
  plan = solved(plan);
  EXPECT_TRUE(behind(plan, 0).empty());
  EXPECT_NEAR(plan.move_seconds, 0.1, 1e-9);
}

TEST(Overlap, ATagDoesNotComeAndGoInEveryRoundOfALoop) {
  MemoryPlan plan = generation();
  plan.phases.insert(plan.phases.begin() + 3, {PhaseId::kBackward, 30_MiB, 9_MiB});
  plan.phases[3].seconds = plan.phases[4].seconds = 4;
  for (TagPlan& t : plan.tags) {
    t.need.insert(t.need.begin() + 3, Need::kOptional);
    t.write.insert(t.write.begin() + 3, false);
  }
  plan.phases[0].seconds = 0.04;
  plan.phases[3].times = plan.phases[4].times = 4;
  plan.phases[4].transient =
      10_MiB;  // the update has room for the reward model, the backward has not
  plan.loops = {{3, 4, 4}};
  plan = solved(plan);
  EXPECT_EQ(plan.moved_per_step, 100_MiB);
}

// ---- against plans without it --------------------------------------------------------------------

// Tags that few of many phases need, under a capacity that makes some of them leave.
MemoryPlan random_overlap(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  MemoryPlan plan;
  plan.overlap = true;
  plan.link = {10, 10, 18, 0};
  const std::size_t phases = 4 + pick(4);
  for (std::size_t p = 0; p < phases; ++p) {
    plan.phases.push_back({some_phase(p), Bytes(pick(60)), Bytes()});
    plan.phases.back().seconds = static_cast<double>(pick(40)) / 4;
  }
  add_random_loop(plan, random);
  const std::size_t tags = 2 + pick(4);
  for (std::size_t t = 0; t < tags; ++t) {
    TagPlan x;
    x.id = some_tag(t);
    x.bytes = Bytes(1 + pick(50));
    x.contents = static_cast<Contents>(pick(3));
    for (std::size_t p = 0; p < phases; ++p) {
      const bool needs = pick(3) == 0;
      x.need.push_back(needs ? Need::kNeed : Need::kOptional);
      x.write.push_back(needs && x.contents != Contents::kFrozen && pick(2) == 0);
    }
    plan.tags.push_back(std::move(x));
  }
  plan.capacity = min_capacity(plan) + Bytes(pick(60));
  if (plan.capacity.is_zero()) plan.capacity = Bytes(1);
  if (pick(4) == 0) plan.host_budget = Bytes(1 + pick(150));
  return plan;
}

// The steady cycle, with every copy done only at the end of its phase: what a phase needs is there, a pause without a copy
// has a host copy of the present contents, nothing is written while it is copied, and each moment fits.
void expect_sound(const MemoryPlan& plan) {
  struct Tag {
    bool there = false;
    std::uint64_t contents = 1, copy = 0;
    bool backed_up = false;  // and not left yet
  };
  std::map<spec::TagId, Tag> tags;
  for (std::size_t t = 0; t < plan.tags.size(); ++t)
    tags[plan.tags[t].id] = {
        plan.schedule.back().resident[t], 1,
        std::count(plan.tags[t].write.begin(), plan.tags[t].write.end(), true) == 0 ? 1U : 0U};
  Bytes link;
  for (int round = 0; round < 3; ++round) {
    link = Bytes();
    for (const auto& [p, again] : visits_of(plan)) {
      std::vector<spec::TagId> copying;
      for (const Move& move : again ? plan.schedule[p].again : plan.schedule[p].moves) {
        Tag& tag = tags[move.tag];
        if (move.copies) link += move.bytes;
        const bool comes = move.kind == Move::Kind::kResume;
        ASSERT_EQ(tag.there, !comes) << to_string(move.tag);
        ASSERT_TRUE(copying.empty() || move.behind) << "first what is waited for";
        if (move.behind) copying.push_back(move.tag);
        if (move.kind == Move::Kind::kPause) {
          if (move.copies) tag.copy = tag.contents;
          ASSERT_TRUE(round == 0 || move.policy == arena::Policy::kDiscard ||
                      tag.copy == tag.contents)
              << to_string(move.tag) << " leaves without a copy";
        }
        ASSERT_FALSE(move.kind == Move::Kind::kPause && move.copies && tag.backed_up)
            << to_string(move.tag);
        tag.backed_up = move.kind == Move::Kind::kBackup;
        if (tag.backed_up) tag.copy = tag.contents;
        if (move.kind != Move::Kind::kBackup) tag.there = comes;
      }
      Bytes held = plan.phases[p].transient;
      for (std::size_t t = 0; t < plan.tags.size(); ++t) {
        Tag& tag = tags[plan.tags[t].id];
        const bool busy = std::count(copying.begin(), copying.end(), plan.tags[t].id) > 0;
        ASSERT_EQ(tag.there, plan.schedule[p].resident[t]);
        ASSERT_TRUE(plan.tags[t].need[p] != Need::kNeed || tag.there);
        ASSERT_FALSE(busy && plan.tags[t].write[p]) << plan.tags[t].name();
        ASSERT_FALSE(tag.backed_up && plan.tags[t].write[p]) << "a copy for nothing";
        if (plan.tags[t].write[p]) ++tag.contents;
        if (tag.there) held += plan.tags[t].bytes;
      }
      ASSERT_LE(held, plan.capacity);
      ASSERT_EQ(held, plan.schedule[p].peak);
    }
  }
  EXPECT_EQ(link, plan.moved_per_step);
}

TEST(OverlapProperty, RandomPlansAreSoundAndNeverSlower) {
  std::mt19937_64 random(20261122);
  int hidden = 0;
  int backups = 0;
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    MemoryPlan plan = random_overlap(random);
    MemoryPlan without = plan;
    without.overlap = false;
    const bool fits = solve_residency(plan, spec::Residency::kAuto).ok();
    ASSERT_EQ(solve_residency(without, spec::Residency::kAuto).ok(), fits);
    if (!fits) continue;
    ASSERT_NO_FATAL_FAILURE(expect_sound(plan));
    ASSERT_GE(plan.moved_per_step, without.moved_per_step) << "the least bytes are known";
    ASSERT_TRUE(plan.host_budget.is_zero() || plan.host_bytes <= plan.host_budget);
    ASSERT_LE(plan.move_seconds, without.move_seconds);
    ASSERT_GE(plan.move_seconds, 0);
    ASSERT_GE(plan.copy_seconds, plan.move_seconds);
    hidden += plan.move_seconds < without.move_seconds ? 1 : 0;
    for (std::size_t p = 0; p < plan.phases.size(); ++p) {
      for (const Move& move : plan.schedule[p].moves)
        backups += move.kind == Move::Kind::kBackup ? 1 : 0;
    }
  }
  EXPECT_GT(hidden, 200);
  EXPECT_GT(backups, 100);
}

}  // namespace
}  // namespace neap::plan
