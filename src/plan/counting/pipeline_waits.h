// The time that pipeline stages wait for each other in a step. It simulates their actions
// (step/pipeline/pipeline_schedule.h) on clocks, with the connections of plan/results/network.h. `neap plan`, its
// simulation and `neap train` take their times from here.
//
// Model     Transfers occupy both stages, which wait for each other. Gradients are reduced after a
//           stage's last backward. The update begins when all stages have their norms. All ranks
//           end a body together.
// Threads   values and stateless functions.
// Failure   as read_models.
// Cost      a microsecond for each action of all stages.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plan/results/memory_plan.h"
#include "step/pipeline/pipeline_schedule.h"

namespace neap::plan {

/// The work of a kind of rank (spec/ranks/rank_kinds.h) in a body of the step, without waits. A body is a
/// phase, or the two parts of a training phase. Times are per step.
struct StageWork {
  double seconds = 0, sums = 0;
  // Per chunk; `weights` is the second part of a backward.
  std::vector<double> forward{}, backward{}, weights{};
  // Parts of `seconds`, for a training phase; else zeros.
  /// The time after the last backward.
  [[nodiscard]] double update() const;
};
/// From a plan without waits, in the order of the step, which is the same on every rank.
[[nodiscard]] std::vector<StageWork> stage_work(const spec::Job& job, const MemoryPlan& plan);

/// The waits of a stage in a body of the step.
struct StageWaits {
  double transfers = 0;  ///< to and from other stages
  double bubble = 0;     ///< until another stage is ready
};
struct StagedStep {
  std::vector<std::vector<StageWaits>> waits;  ///< per kind, with the bodies of stage_work()
  // For the last body that trains in stages:
  std::optional<spec::ModelId> model;  ///< the model with stages
  std::vector<double> forward,
      backward;  ///< of a micro-batch on each part (step/pipeline/pipeline_schedule.h), both parts
  std::vector<step::PipelineSpan> spans;  ///< of a mini-batch
};
/// `work` has each kind of rank; `plan` is that of any of them.
[[nodiscard]] Result<StagedStep> run_stages(const spec::Job& job, const Target& target,
                                            const MemoryPlan& plan,
                                            const std::vector<std::vector<StageWork>>& work);
/// Adds the waits of a kind to its plan, which must have none yet.
void add_waits(const spec::Job& job, const std::vector<StageWaits>& waits, MemoryPlan& plan);

}  // namespace neap::plan
