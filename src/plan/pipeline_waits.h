// What the stages of a pipeline wait for each other in a step: their actions (step/pipeline_schedule.h) run side by side
// on clocks, over the connections of plan/network.h. `neap plan`, its simulation and `neap train` take their seconds from
// here.
//
// Model     Transfers take both stages, which wait for each other. Gradients are summed up behind a stage's last
//           backward, and the update begins when all stages have their norms. All ranks end a body together.
// Threads   values and functions without state.
// Failure   as read_models.
// Cost      a microsecond for each action of all stages.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plan/memory_plan.h"
#include "step/pipeline_schedule.h"

namespace neap::plan {

/// What a kind of rank (spec/rank_kinds.h) does alone in a body of the step: a phase, or the two parts of a training phase. Of one step.
struct StageWork {
  double seconds = 0, sums = 0;
  // Of each chunk; the weights' part of a backward that is in two.
  std::vector<double> forward{}, backward{}, weights{};
  // They are parts of `seconds`, where the phase trains; else zeros.
  /// Behind the last backward.
  [[nodiscard]] double update() const;
};
/// Of a plan without waits, in the order of the step, which is that of every rank.
[[nodiscard]] std::vector<StageWork> stage_work(const spec::Job& job, const MemoryPlan& plan);

/// What a stage waits in a body of the step, besides.
struct StageWaits {
  double transfers = 0;  ///< to and from other stages
  double bubble = 0;     ///< until another stage is there
};
struct StagedStep {
  std::vector<std::vector<StageWaits>> waits;  ///< of each kind, as stage_work() has the bodies
  // Where stages train, of the last such body:
  std::optional<spec::ModelId> model;  ///< that they divide
  std::vector<double> forward,
      backward;  ///< a micro-batch's on each part (step/pipeline_schedule.h), both parts of it
  std::vector<step::PipelineSpan> spans;  ///< of a mini-batch
};
/// `work`: of each kind of rank. `plan`: of any of them.
[[nodiscard]] Result<StagedStep> run_stages(const spec::Job& job, const Target& target,
                                            const MemoryPlan& plan,
                                            const std::vector<std::vector<StageWork>>& work);
/// Adds those of its kind to a plan without them.
void add_waits(const spec::Job& job, const std::vector<StageWaits>& waits, MemoryPlan& plan);

}  // namespace neap::plan
