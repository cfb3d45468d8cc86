#include "plan/residency/phase_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <random>

#include "plan/residency/least_capacity.h"
#include "plan/residency/tag_options.h"
#include "unit/plan/small_plans.h"

namespace neap::plan {
namespace {

// The steady cycle, step by step: does what the moves say and checks what may be relied on. Loops run
// all their rounds.
struct Walk {
  Bytes link;
  bool closes = true, fits = true, complete = true;
};
Walk walk(const MemoryPlan& plan) {
  Walk w;
  const std::size_t tags = plan.tags.size();
  std::vector<bool> there = plan.schedule.back().resident;
  std::vector<bool> host_copy(tags, false);
  for (int round = 0; round < 3; ++round) {
    w.link = Bytes();
    for (const auto& [p, again] : visits_of(plan)) {
      const auto held = [&] {
        Bytes sum;
        for (std::size_t t = 0; t < tags; ++t) sum += there[t] ? plan.tags[t].bytes : Bytes();
        return sum;
      };
      for (const Move& move : again ? plan.schedule[p].again : plan.schedule[p].moves) {
        const auto t = static_cast<std::size_t>(
            std::find_if(plan.tags.begin(), plan.tags.end(),
                         [&](const TagPlan& x) { return x.id == move.tag; }) -
            plan.tags.begin());
        const bool pause = move.kind == Move::Kind::kPause;
        EXPECT_EQ(there[t], pause) << to_string(move.tag);
        there[t] = !pause;
        if (move.copies) w.link += move.bytes;
        if (pause && move.policy == arena::Policy::kHost) {
          // An uncopied pause relies on an earlier copy; in the first round there may be none yet.
          if (move.copies) host_copy[t] = true;
          w.complete = w.complete && (round == 0 || host_copy[t] ||
                                      std::count(plan.tags[t].write.begin(),
                                                 plan.tags[t].write.end(), true) == 0);
        }
        if (!plan.capacity.is_zero()) w.fits = w.fits && held() <= plan.capacity;
      }
      const Bytes peak = held() + plan.phases[p].transient;
      w.fits = w.fits && there == plan.schedule[p].resident && peak == plan.schedule[p].peak &&
               (plan.capacity.is_zero() || plan.schedule[p].peak <= plan.capacity);
      for (std::size_t t = 0; t < tags; ++t) {
        const Need need = plan.tags[t].need[p];
        w.complete = w.complete && (need != Need::kNeed || there[t]);
        if (plan.tags[t].write[p]) host_copy[t] = false;
      }
    }
    w.closes = w.closes && there == plan.schedule.back().resident;
  }
  return w;
}

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

// ---- against enumeration -----------------------------------------------------------------------

// Cost of one tag's residency, by walking the cycle until it repeats itself.
struct Lived {
  std::uint64_t transfer_bytes = 0, host = 0;
};
Lived live(const MemoryPlan& plan, const TagPlan& t, const std::vector<bool>& there) {
  bool was = there.back();
  bool copy = t.contents == Contents::kFrozen;  // a frozen tag came from somewhere
  Lived lived;
  for (int round = 0; round < 3; ++round) {
    lived = {};
    for (const auto& [p, again] : visits_of(plan)) {
      if (t.contents != Contents::kScratch && was != there[p]) {
        lived.host = t.bytes.count();
        if (was && !copy) lived.transfer_bytes += t.bytes.count();
        if (!was) lived.transfer_bytes += t.bytes.count();
        if (was) copy = true;
      }
      if (t.write[p]) copy = false;
      was = there[p];
    }
  }
  return lived;
}

// Least link bytes over every residency of every tag in every phase.
std::optional<std::uint64_t> enumerate(const MemoryPlan& plan) {
  const std::size_t phases = plan.phases.size();
  struct Way {
    std::vector<bool> there;
    Lived lived;
  };
  std::vector<std::vector<Way>> ways;
  for (const TagPlan& t : plan.tags) {
    ways.emplace_back();
    for (std::uint64_t mask = 0; mask < (1ull << phases); ++mask) {
      std::vector<bool> there;
      bool allowed = true;
      for (std::size_t p = 0; p < phases; ++p) {
        there.push_back((mask >> p & 1) != 0);
        allowed =
            allowed && (t.need[p] == Need::kOptional || there.back() == (t.need[p] == Need::kNeed));
      }
      if (allowed) ways.back().push_back({there, live(plan, t, there)});
    }
  }
  std::optional<std::uint64_t> best;
  std::vector<std::uint64_t> used(phases, 0);
  const auto visit = [&](auto&& self, std::size_t k, std::uint64_t link,
                         std::uint64_t host) -> void {
    if (k == ways.size()) {
      for (std::size_t p = 0; p < phases; ++p)
        if (used[p] + plan.phases[p].transient.count() > plan.capacity.count()) return;
      if (!plan.host_budget.is_zero() && host > plan.host_budget.count()) return;
      if (!best || link < *best) best = link;
      return;
    }
    for (const Way& way : ways[k]) {
      for (std::size_t p = 0; p < phases; ++p)
        used[p] += way.there[p] ? plan.tags[k].bytes.count() : 0;
      self(self, k + 1, link + way.lived.transfer_bytes, host + way.lived.host);
      for (std::size_t p = 0; p < phases; ++p)
        used[p] -= way.there[p] ? plan.tags[k].bytes.count() : 0;
    }
  };
  visit(visit, 0, 0, 0);
  return best;
}

TEST(ResidencyProperty, IsOptimalAgainstEnumeration) {
  std::mt19937_64 random(20241121);
  int fitted = 0;
  for (int i = 0; i < 3000; ++i) {
    MemoryPlan plan = random_plan(random);
    const std::optional<std::uint64_t> best = enumerate(plan);
    const Status status = solve_residency(plan, spec::Residency::kAuto);
    ASSERT_EQ(status.ok(), best.has_value()) << i << ": " << status.message();
    if (!best) {
      ASSERT_EQ(status.code(), ErrorCode::kDoesNotFit);
      MemoryPlan roomier = plan;
      roomier.capacity = min_capacity(plan);
      ASSERT_GT(roomier.capacity, plan.capacity) << i;
      ASSERT_TRUE(solve_residency(roomier, spec::Residency::kAuto).ok()) << i;
      continue;
    }
    ++fitted;
    ASSERT_EQ(plan.moved_per_step.count(), *best) << i;
    const Walk w = walk(plan);
    ASSERT_TRUE(w.closes && w.fits && w.complete) << i;
    ASSERT_EQ(w.link, plan.moved_per_step) << i;
    ASSERT_LE(min_capacity(plan), plan.capacity) << i;
  }
  EXPECT_GT(fitted, 1000);
}

TEST(ResidencyProperty, APhaseThatRunsOnceChangesNoStep) {
  std::mt19937_64 random(11);
  int fitted = 0;
  for (int i = 0; i < 500; ++i) {
    MemoryPlan plain = random_plan(random);
    plain.overlap = i % 2 == 0;
    for (PhasePlan& phase : plain.phases)
      phase.seconds = 1e-9 * static_cast<double>(random() % 100);
    MemoryPlan more = plain;
    more.phases.push_back({some_phase(15), Bytes(1), Bytes(1), 5});
    more.phases.back().times = 0;
    for (TagPlan& t : more.tags) {
      t.need.push_back(Need::kOptional);
      t.write.push_back(false);
    }
    more.tags.push_back(tag(some_tag(15), plain.capacity - Bytes(1),
                            std::string(plain.phases.size(), 'd') + "N",
                            std::string(more.phases.size(), '.'), Contents::kScratch));
    const bool fits = solve_residency(plain, spec::Residency::kAuto).ok();
    ASSERT_EQ(solve_residency(more, spec::Residency::kAuto).ok(), fits) << i;
    if (!fits) continue;
    ++fitted;
    for (std::size_t p = 0; p < plain.phases.size(); ++p) {
      const PhaseSchedule &a = plain.schedule[p], &b = more.schedule[p];
      ASSERT_EQ(a.moves, b.moves) << i;
      ASSERT_EQ(a.again, b.again) << i;
      ASSERT_EQ(a.peak, b.peak) << i;
      ASSERT_FALSE(b.resident.back()) << i;
    }
    ASSERT_EQ(more.moved_per_step, plain.moved_per_step) << i;
    ASSERT_DOUBLE_EQ(more.seconds(), plain.seconds()) << i;
    ASSERT_EQ(more.host_bytes, plain.host_bytes) << i;
    ASSERT_EQ(more.schedule.back().peak, plain.capacity) << i;
  }
  EXPECT_GT(fitted, 100);
}

TEST(ResidencyProperty, MoreCapacityNeverMovesMore) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    MemoryPlan plan = random_plan(random);
    std::optional<Bytes> before;
    for (std::uint64_t c = 20; c <= 240; c += 20) {
      plan.capacity = Bytes(c);
      const bool fits = solve_residency(plan, spec::Residency::kAuto).ok();
      ASSERT_TRUE(fits || !before) << "fitted under less";
      if (!fits) continue;
      ASSERT_LE(plan.peak, plan.capacity);
      if (before) {
        ASSERT_LE(plan.moved_per_step, *before) << i << " at " << c;
      }
      before = plan.moved_per_step;
    }
  }
}

TEST(ResidencyProperty, SixteenTagsInTenPhasesAreSolvedAtOnce) {
  std::mt19937_64 random(3);
  MemoryPlan plan;
  for (int p = 0; p < 10; ++p)
    plan.phases.push_back({some_phase(static_cast<std::size_t>(p)), Bytes(1000), Bytes()});
  Bytes total;
  for (int t = 0; t < 16; ++t) {
    std::string needs(10, '.');
    std::string writes(10, '.');
    for (int k = 0; k < 3; ++k) needs[random() % 10] = 'N';
    for (std::size_t p = 0; p < 10; ++p)
      if (needs[p] == 'N' && random() % 2 == 0) writes[p] = 'w';
    plan.tags.push_back(tag(some_tag(static_cast<std::size_t>(t)), Bytes(1000 + random() % 100000),
                            needs, writes, Contents::kLive));
    total += plan.tags.back().bytes;
  }
  const Bytes least = min_capacity(plan);
  ASSERT_LT(least, total);
  std::optional<Bytes> moved;
  const std::clock_t start = std::clock();
  for (const std::uint64_t percent : {0U, 5U, 20U, 40U, 60U, 80U, 95U}) {
    plan.capacity = least + (total - least) * percent / 100;
    const Status status = solve_residency(plan, spec::Residency::kAuto);
    ASSERT_TRUE(status.ok()) << percent << ": " << status.message();
    EXPECT_LE(plan.peak, plan.capacity);
    const Walk w = walk(plan);
    EXPECT_TRUE(w.closes && w.fits && w.complete) << percent;
    EXPECT_EQ(w.link, plan.moved_per_step) << percent;
    if (moved) {
      EXPECT_LE(plan.moved_per_step, *moved) << percent;
    }
    moved = plan.moved_per_step;
  }
  // Processor time, on any machine and under sanitizers; enumeration would take hours.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2);
  plan.capacity = least - 1_B;
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kDoesNotFit);
}

}  // namespace
}  // namespace neap::plan
