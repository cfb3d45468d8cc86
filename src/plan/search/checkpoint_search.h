// Chooses the tensors that blocks keep if activation_checkpointing is "auto". It minimises the time
// of recomputation and offloading together, under the capacity.
//
// Search    Ladders order the choices of each model. For each model in turn, it tries every rung
//           with equal blocks, each with the best moves. Then it tries the rungs just below the
//           best one, by bisection on interpolated seconds and bytes. Predictions are quick ones
//           until a rung is found. From there it takes the first rung that also fits with an exact
//           prediction. The result is exact for one model if moves only grow with what is kept. A
//           rung is skipped if its operations alone take as long as the best plan.
// Cost      a prediction of one phase for each rung with equal blocks and a few more, and a
//           schedule for each rung tried: tens per model.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "plan/counting/transients.h"
#include "plan/results/memory_plan.h"
#include "plan/search/checkpoint_ladder.h"

namespace neap::plan {

/// A model whose checkpointing is to be chosen.
struct CheckpointChoice {
  std::size_t activation = 0;  ///< index in MemoryPlan::activations
  std::size_t phase = 0;       ///< phase that runs its backward
  const CheckpointLadder* ladder = nullptr;
  /// Predicts that phase for a rung.
  std::function<Result<PhasePlan>(std::size_t rung, Accuracy accuracy)> predict;
};

/// Fills activations, their phases and the schedule of `plan`. Returns false if nothing takes less
/// than `limit` seconds and fits, even if blocks keep only their inputs.
[[nodiscard]] Result<bool> solve_checkpointing(MemoryPlan& plan,
                                               const std::vector<CheckpointChoice>& choices,
                                               spec::Residency residency, double limit);

}  // namespace neap::plan
