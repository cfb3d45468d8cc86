#include "plan/residency/phase_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/residency/least_capacity.h"
#include "plan/residency/tag_options.h"
#include "plan/search/checkpoint_search.h"
#include "schedule_walk.h"
#include "unit/plan/small_plans.h"

namespace neap::plan {
namespace {

TEST(Residency, WhatFitsStaysWithoutMoves) {
  MemoryPlan plan = ppo(Bytes());
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.moved_per_step, 0_B);
  EXPECT_EQ(plan.all_resident, 1160_MiB);
  EXPECT_EQ(plan.host_bytes, 0_B);
  // The KV cache is dropped outside generate all the same; nothing else moves.
  EXPECT_EQ(plan.schedule[0].moves.size(), 1U);
  EXPECT_EQ(plan.schedule[1].moves.size(), 1U);
  EXPECT_EQ(plan.peak, 1160_MiB);
}

TEST(Residency, TightensToTheLeastCapacityAndNamesIt) {
  const Bytes least = min_capacity(ppo(Bytes()));
  EXPECT_EQ(least, 410_MiB);  // train_actor: weights, grads, optimizer, transient
  MemoryPlan plan = ppo(least);
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.peak, 410_MiB);
  const Walk w = walk(plan);
  EXPECT_TRUE(w.closes && w.fits && w.complete);
  EXPECT_EQ(w.link, plan.moved_per_step);
  MemoryPlan small = ppo(least - 1_MiB);
  const Status status = solve_residency(small, spec::Residency::kAuto);
  EXPECT_EQ(status.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(status.message().find("the minimum capacity is 410 MiB. Phase \"train_"),
            std::string::npos)
      << status.message();
}

TEST(Residency, CountsCleanCopiesOnce) {
  // critic.weights leave twice a step but change only in train_critic: one copy out, two in.
  const TagPlan critic = tag(kCriticWeights, 100_MiB, "...N.N.", ".....w.", Contents::kLive);
  const std::vector<TagOption> options = tag_options(ppo(Bytes()), critic);
  EXPECT_EQ(options.front().cost.transfer_bytes, 0U);
  EXPECT_EQ(options.back().cost.transfer_bytes, (300_MiB).count());
  // Frozen: in only.
  const TagPlan frozen = tag(kRewardWeights, 100_MiB, "....N..", ".......", Contents::kFrozen);
  EXPECT_EQ(tag_options(ppo(Bytes()), frozen).back().cost.transfer_bytes, (100_MiB).count());
  // Scratch: free.
  const TagPlan grads = tag(kGradients, 100_MiB, "......N", "......w", Contents::kScratch);
  EXPECT_EQ(tag_options(ppo(Bytes()), grads).back().cost.transfer_bytes, 0U);
  EXPECT_EQ(tag_options(ppo(Bytes()), grads).back().host, 0_B);
}

TEST(Residency, HostBudgetRaisesTheLeastCapacity) {
  MemoryPlan plan = ppo(410_MiB);
  plan.host_budget = 500_MiB;
  const Bytes least = min_capacity(plan);
  EXPECT_GT(least, 410_MiB);
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kDoesNotFit);
  plan.capacity = least;
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_LE(plan.host_bytes, 500_MiB);
  plan.capacity = least - 1_B;
  EXPECT_FALSE(solve_residency(plan, spec::Residency::kAuto).ok());
}

TEST(Residency, AllResidentKeepsEverythingWhateverTheCapacity) {
  MemoryPlan plan = ppo(410_MiB);
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAll).ok());
  EXPECT_EQ(plan.peak, 1160_MiB);
  EXPECT_EQ(plan.moved_per_step, 0_B);
  for (const PhaseSchedule& s : plan.schedule) EXPECT_TRUE(s.moves.empty());
}

TEST(Residency, RefusesPlansThatContradictThemselves) {
  MemoryPlan plan = ppo(Bytes());
  plan.tags[0].need[3] = Need::kDrop;
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kInvalidArgument);
  plan = ppo(Bytes());
  plan.tags[0].need.pop_back();
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kInvalidArgument);
}

TEST(Residency, PlansWithTooManyPhasesAreRefusedBeforeTheirTagsAreRead) {
  MemoryPlan plan = ppo(1_GiB);
  plan.phases.resize(kMostPhases + 1, plan.phases.front());
  for (TagPlan& tag : plan.tags) tag.need.clear();
  const Result<bool> solved = solve_checkpointing(plan, {}, spec::Residency::kAuto, 1);
  EXPECT_EQ(solved.status().code(), ErrorCode::kInvalidArgument);
}

TEST(Residency, AMiniBatchMovesEveryRound) {
  // generate; then four times: backward without optimizer, update without activations.
  MemoryPlan plan;
  plan.phases = {{PhaseId::kGenerate, 10_MiB, 9_MiB},
                 {PhaseId::kBackward, 150_MiB, 140_MiB},
                 {PhaseId::kUpdate, 1_MiB, 1_MiB}};
  for (std::size_t p = 1; p < 3; ++p) plan.phases[p].times = 4;
  plan.loops = {{1, 2, 4}};
  plan.tags = {tag(kWeights, 100_MiB, "NNN", "..w", Contents::kLive),
               tag(kGradients, 100_MiB, ".NN", ".ww", Contents::kScratch),
               tag(kOptimizer, 200_MiB, "..N", "..w", Contents::kLive),
               tag(kCriticWeights, 50_MiB, "N..", "w..", Contents::kLive)};
  plan.capacity = 455_MiB;
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  // The optimizer leaves before each backward and comes before each update; the first time it leaves
  // before generate.
  EXPECT_EQ(plan.moved_per_step, 4 * 400_MiB);
  EXPECT_EQ(plan.schedule[0].moves.front().tag, kOptimizer);
  EXPECT_EQ(plan.schedule[1].again.front().tag, kOptimizer);
  EXPECT_EQ(plan.schedule[2].moves, plan.schedule[2].again);
  EXPECT_EQ(plan.schedule[2].moves.size(), 1U);
  const Walk w = walk(plan);
  EXPECT_TRUE(w.closes && w.fits && w.complete);
  EXPECT_EQ(w.link, plan.moved_per_step);
  EXPECT_NEAR(plan.move_seconds, 4 * (200.0 * 1048576) * (1 / 55.2e9 + 1 / 55.0e9 + 4.2e-14), 1e-9);
  // Joined, the same capacity does not do.
  EXPECT_EQ(min_capacity(plan), 401_MiB);
}

TEST(Residency, WhatRestsBehindSlotsTakesHostMemoryAndTheLink) {
  MemoryPlan plan;
  plan.phases = {{PhaseId::kBackward, 50_MiB, 50_MiB}, {PhaseId::kUpdate, 1_MiB, 1_MiB}};
  plan.phases[1].fetched = 160_MiB;  // of two rounds
  plan.phases[1].stored = 120_MiB;
  for (PhasePlan& p : plan.phases) p.times = 2;
  plan.loops = {{0, 1, 2}};
  plan.tags = {tag(kWeights, 100_MiB, "NN", ".w", Contents::kLive),
               tag(kOptimizer, 30_MiB, ".N", ".w", Contents::kScratch)};
  plan.tags[1].hosted.states = {{"embed", Bytes(), 50_MiB}, {"block.0", Bytes(), 30_MiB}};
  plan.capacity = 150_MiB;
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.peak, 150_MiB);
  EXPECT_EQ(plan.schedule[1].peak, 131_MiB);
  EXPECT_EQ(plan.moved_per_step, 280_MiB);
  EXPECT_EQ(plan.host_bytes, 80_MiB);
  plan.host_budget = 79_MiB;
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kDoesNotFit);
}

TEST(Residency, WeightsThatAreGatheredToGenerateAreResidentBesides) {
  MemoryPlan plan;
  plan.phases = {{PhaseId::kGenerate, 10_MiB, 9_MiB, 2}, {PhaseId::kTrainActor, 10_MiB, 9_MiB, 2}};
  const spec::TagId slots{spec::TagKind::kBuffers, spec::ModelId::kActor};
  const spec::TagId gathered{spec::TagKind::kBlocks, spec::ModelId::kActor};
  plan.tags = {tag(kWeights, 50_MiB, "NN", ".w", Contents::kLive),
               tag(slots, 20_MiB, "NN", "ww", Contents::kScratch),
               tag(gathered, 100_MiB, "N.", "w.", Contents::kScratch)};
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.all_resident, 180_MiB);
  // Of streamed weights these are the blocks that the host has.
  plan.tags[1].hosted.blocks = {{"block.0", Bytes(), 100_MiB}};
  plan.tags[2].own_blocks = true;
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.all_resident, std::max(160_MiB, plan.peak));
  // Those of a stage, which is not all that generates.
  plan.tags[2].own_blocks = false;
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_EQ(plan.all_resident, 260_MiB);
}

TEST(Residency, APhaseThatRunsOnceHasWhatItNeedsAndNothingElse) {
  MemoryPlan plan;
  plan.phases = {{PhaseId::kTrain, 10_MiB, 9_MiB, 2},
                 {PhaseId::kValidate, 5_MiB, 5_MiB, 1},
                 {PhaseId::kReferenceLogProbs, 30_MiB, 30_MiB, 7}};
  plan.phases[2].times = 0;
  plan.tags = {tag(kWeights, 100_MiB, "NN.", "w..", Contents::kLive),
               tag(kOptimizer, 200_MiB, "N..", "w..", Contents::kLive),
               tag(kReferenceWeights, 90_MiB, "ddN", "...", Contents::kScratch)};
  for (const spec::Residency mode : {spec::Residency::kAuto, spec::Residency::kAll}) {
    MemoryPlan free = plan;
    ASSERT_TRUE(solve_residency(free, mode).ok());
    EXPECT_EQ(free.cycle(), 2U);
    EXPECT_EQ(free.schedule[2].resident, (std::vector<bool>{false, false, true}));
    EXPECT_EQ(free.schedule[2].peak, 120_MiB);
    EXPECT_EQ(free.schedule[0].resident, (std::vector<bool>{true, true, false}));
    EXPECT_EQ(free.schedule[1].resident, (std::vector<bool>{true, true, false}));
    EXPECT_EQ(free.peak, 310_MiB);
    EXPECT_EQ(free.all_resident, 310_MiB) << "never all three";
    EXPECT_EQ(free.moved_per_step, 0_B);
    EXPECT_EQ(free.host_bytes, 0_B);
    EXPECT_DOUBLE_EQ(free.seconds(), 3) << "of a step";
    for (const PhaseSchedule& s : free.schedule) EXPECT_TRUE(s.moves.empty());
  }
  // It bounds the capacity as any other.
  plan.phases[2].transient = 400_MiB;
  EXPECT_EQ(min_capacity(plan), 490_MiB);
  EXPECT_EQ(least_needed(plan), 490_MiB);
}

}  // namespace
}  // namespace neap::plan
