// The plan that a rank runs with. Ranks of a kind (spec/ranks/rank_kinds.h) share a plan, made for the
// smallest device among them. Kinds agree on the settings of models that they share
// (plan/search/common_choices.h).
//
// Threads   one. Every rank calls these functions together.
// Failure   CollectiveError. If some kinds do not fit, it is that of the kind that needs the most
//           memory.
// Cost      plan::make_plan for this rank's kind, once per round.
#pragma once

#include "parallel/communicator.h"
#include "plan/results/memory_plan.h"
#include "spec/ranks/rank_kinds.h"

namespace neap::rlhf {

/// This rank's target with the least device and host memory of the ranks `among`, which include
/// this rank.
[[nodiscard]] plan::Target least_target(plan::Target own, const spec::RankKind& among,
                                        parallel::Communicator& ranks);

/// Fails where ranks with other measured throughput choose other changes of the job.
[[nodiscard]] plan::MemoryPlan agreed_plan(const spec::Job& job, const plan::Target& own,
                                           parallel::Communicator& ranks);

}  // namespace neap::rlhf
