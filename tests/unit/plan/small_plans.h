// Plans without models, for tests of the schedule.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/results/memory_plan.h"
#include "unit/plan/plan_ids.h"

namespace neap::plan {

using spec::PhaseId;

inline TagPlan tag(spec::TagId id, Bytes bytes, const std::string& needs, const std::string& writes,
                   Contents contents) {
  TagPlan t;
  t.id = id;
  t.bytes = bytes;
  t.contents = contents;
  for (const char c : needs)
    t.need.push_back(c == 'N' ? Need::kNeed : c == 'd' ? Need::kDrop : Need::kOptional);
  for (const char c : writes) t.write.push_back(c == 'w');
  return t;
}

inline MemoryPlan ppo(Bytes capacity) {
  // generate, actor_logp, ref_logp, values, rewards, train_critic, train_actor
  MemoryPlan plan;
  plan.capacity = capacity;
  for (const PhaseId phase :
       {PhaseId::kGenerate, PhaseId::kActorLogProbs, PhaseId::kReferenceLogProbs, PhaseId::kValues,
        PhaseId::kRewards, PhaseId::kTrainCritic, PhaseId::kTrainActor})
    plan.phases.push_back({phase, 10_MiB, 9_MiB});
  plan.tags = {tag(kWeights, 100_MiB, "NN....N", "......w", Contents::kLive),
               tag(kGradients, 100_MiB, "......N", "......w", Contents::kScratch),
               tag(kOptimizer, 200_MiB, "......N", "......w", Contents::kLive),
               tag(kKeyValues, 150_MiB, "Ndddddd", "w......", Contents::kScratch),
               tag(kReferenceWeights, 100_MiB, "..N....", ".......", Contents::kFrozen),
               tag(kCriticWeights, 100_MiB, "...N.N.", ".....w.", Contents::kLive),
               tag(kCriticGradients, 100_MiB, ".....N.", ".....w.", Contents::kScratch),
               tag(kCriticOptimizer, 200_MiB, ".....N.", ".....w.", Contents::kLive),
               tag(kRewardWeights, 100_MiB, "....N..", ".......", Contents::kFrozen)};
  return plan;
}

/// The phases of a step in order, loops round after round; true: not the first round.
inline std::vector<std::pair<std::size_t, bool>> visits_of(const MemoryPlan& plan) {
  std::vector<std::pair<std::size_t, bool>> visits;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    visits.emplace_back(p, false);
    for (const Loop& loop : plan.loops) {
      for (std::int64_t round = 1; loop.last == p && round < loop.times; ++round)
        for (std::size_t q = loop.first; q <= loop.last; ++q) visits.emplace_back(q, true);
    }
  }
  return visits;
}
/// A loop over some of the phases, in half of the cases.
inline void add_random_loop(MemoryPlan& plan, std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  if (pick(2) != 0) return;
  const std::size_t phases = plan.phases.size();
  const std::size_t first = pick(phases);
  const std::size_t last = first + pick(phases - first);
  const auto times = static_cast<std::int64_t>(1 + pick(4));
  plan.loops.push_back({first, last, times});
  for (std::size_t p = first; p <= last; ++p) plan.phases[p].times = times;
}

inline MemoryPlan random_plan(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  MemoryPlan plan;
  const std::size_t phases = 2 + pick(3);
  for (std::size_t p = 0; p < phases; ++p)
    plan.phases.push_back({some_phase(p), Bytes(pick(20)), Bytes()});
  const std::size_t tags = 1 + pick(4);
  for (std::size_t t = 0; t < tags; ++t) {
    TagPlan x;
    x.id = some_tag(t);
    x.bytes = Bytes(1 + pick(50));
    x.contents = static_cast<Contents>(pick(3));
    const bool drops = x.contents == Contents::kScratch && pick(2) == 0;
    for (std::size_t p = 0; p < phases; ++p) {
      const bool needs = pick(2) == 0;
      x.need.push_back(needs ? Need::kNeed : drops ? Need::kDrop : Need::kOptional);
      x.write.push_back(needs && x.contents != Contents::kFrozen && pick(2) == 0);
    }
    plan.tags.push_back(std::move(x));
  }
  plan.capacity = Bytes(40 + pick(120));
  if (pick(3) == 0) plan.host_budget = Bytes(1 + pick(80));
  add_random_loop(plan, random);
  return plan;
}

}  // namespace neap::plan
