// A plan small enough to follow by hand, for tests of the bridge.
#pragma once

#include <utility>
#include <vector>

#include "plan/results/memory_plan.h"
#include "unit/plan/plan_ids.h"

namespace neap::bridge {

constexpr spec::PhaseId kLook = spec::PhaseId::kActorLogProbs, kLearn = spec::PhaseId::kTrainActor;

inline plan::TagPlan tag(spec::TagId id, Bytes bytes, std::vector<plan::Need> need,
                         plan::Contents contents) {
  plan::TagPlan t;
  t.id = id;
  t.bytes = bytes;
  t.regions = {{"all", bytes, {{"first", Bytes(0), bytes / 2}, {"second", bytes / 2, bytes / 2}}}};
  t.need = std::move(need);
  t.write.assign(t.need.size(), contents == plan::Contents::kLive);
  t.contents = contents;
  return t;
}

/// Two phases; weights in both, frozen in the first, optimizer in the second: 24 MiB in all, 16 MiB a phase.
inline plan::MemoryPlan small_plan(Bytes capacity) {
  using plan::Need;
  plan::MemoryPlan p;
  p.task = "test";
  p.capacity = capacity;
  p.granularity = 2_MiB;
  p.phases = {{kLook, 8_MiB, 8_MiB}, {kLearn, 8_MiB, 8_MiB}};
  p.tags = {
      tag(plan::kWeights, 8_MiB, {Need::kNeed, Need::kNeed}, plan::Contents::kLive),
      tag(plan::kReferenceWeights, 8_MiB, {Need::kNeed, Need::kOptional}, plan::Contents::kFrozen),
      tag(plan::kOptimizer, 8_MiB, {Need::kOptional, Need::kNeed}, plan::Contents::kLive)};
  const std::vector<bool> none(3, false);
  p.schedule = {{{}, {true, true, false}, 16_MiB, 24_MiB, {}, none, none},
                {{}, {true, false, true}, 16_MiB, 24_MiB, {}, none, none}};
  p.peak = 24_MiB;
  p.all_resident = 32_MiB;
  return p;
}

}  // namespace neap::bridge
