// Which tensors blocks keep where activation_checkpointing is "auto": recomputation and moves
// together take the least time that fits.
//
// Search  Ladders order the retentions of each model. Of each model in turn, every rung on which all
//         blocks are equal is tried with the best moves; then the rungs below the best one, by
//         bisection. Exact for one model and moves that only grow with what is kept.
// Cost    a prediction of one phase and a schedule for each rung tried: some tens for each model.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "plan/checkpoint_ladder.h"
#include "plan/memory_plan.h"

namespace neap::plan {

/// A model whose retention is to be chosen.
struct CheckpointChoice {
  std::size_t activation = 0;  ///< its place in MemoryPlan::activations
  std::size_t phase = 0;       ///< the phase that runs its backward
  const CheckpointLadder* ladder = nullptr;
  /// That phase with the retention of a rung.
  std::function<Result<PhasePlan>(std::size_t rung)> predict;
};

/// Fills activations, their phases and the schedule of `plan`. kDoesNotFit as solve_residency's
/// when nothing fits, even with blocks that keep their inputs only.
[[nodiscard]] Status solve_checkpointing(MemoryPlan& plan,
                                         const std::vector<CheckpointChoice>& choices,
                                         const std::string& residency);

}  // namespace neap::plan
