// Which tensors blocks keep where activation_checkpointing is "auto": recomputation and moves
// together take the least time that fits.
//
// Search  Ladders order the retentions of each model. Of each model in turn, every rung on which all
//         blocks are alike is tried with the best moves; then the rungs below the best one, by
//         bisection over seconds and bytes interpolated between the two. Predictions are quick ones
//         until a rung is found; from there the first rung is taken that an exact one lets fit.
//         Exact for one model and moves that only grow with what is kept. A rung whose operations
//         alone take as long as the best plan is left out.
// Cost    a prediction of one phase for each rung on which all blocks are equal and a few more, a
//         schedule for each rung tried: some tens for each model.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "plan/checkpoint_ladder.h"
#include "plan/memory_plan.h"
#include "plan/transients.h"

namespace neap::plan {

/// A model whose retention is to be chosen.
struct CheckpointChoice {
  std::size_t activation = 0;  ///< its place in MemoryPlan::activations
  std::size_t phase = 0;       ///< the phase that runs its backward
  const CheckpointLadder* ladder = nullptr;
  /// That phase with the retention of a rung.
  std::function<Result<PhasePlan>(std::size_t rung, Accuracy accuracy)> predict;
};

/// Fills activations, their phases and the schedule of `plan`. False when nothing fits that takes
/// less than `limit` seconds, even with blocks that keep their inputs only.
[[nodiscard]] Result<bool> solve_checkpointing(MemoryPlan& plan,
                                               const std::vector<CheckpointChoice>& choices,
                                               spec::Residency residency, double limit);

}  // namespace neap::plan
