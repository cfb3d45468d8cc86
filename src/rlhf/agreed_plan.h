// The plan of a rank of a run: that of its kind (spec/rank_kinds.h), for the least device among the kind's ranks, by choices that
// are those of all kinds for models that they share (plan/common_choices.h).
//
// Threads   one. Every rank calls them together.
// Failure   CollectiveError. Where kinds do not fit, of the one that needs most.
// Cost      as plan::make_plan for this rank's kind, once a round.
#pragma once

#include "parallel/communicator.h"
#include "plan/memory_plan.h"
#include "spec/rank_kinds.h"

namespace neap::rlhf {

/// The target of this rank, with the least memory of device and host that one of `among`, which has this rank, has.
[[nodiscard]] plan::Target least_target(plan::Target own, const spec::RankKind& among,
                                        parallel::Communicator& ranks);

[[nodiscard]] plan::MemoryPlan agreed_plan(const spec::Job& job, const plan::Target& own,
                                           parallel::Communicator& ranks);

}  // namespace neap::rlhf
