// Simulates a step of all ranks of a job without the machines: its time, the parts of it, and the
// memory of each rank.
//
// Model     Ranks with the same pipeline stages do the same work. Each kind has one plan, made by
//           counting its passes, with the waits of stages for each other (plan/search/stage_plans.h).
// Threads   stateless functions.
// Failure   as make_plan, naming the stage.
// Cost      as plan_stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/results/memory_plan.h"
#include "plan/search/stage_plans.h"

namespace neap::plan {

/// The parts of a step's time, averaged over all ranks.
struct StepShares {
  double compute = 0;  ///< seconds of operations, forward to update
  /// Exposed collectives of each axis, and transfers between stages.
  step::OfAxes<double> axes{};
  double bubble = 0;  ///< waits of a stage for others
  double copies = 0;  ///< exposed copies from and to the host
  [[nodiscard]] double sum() const;
};
struct SimulatedStage {
  std::int64_t ranks = 1;
  StepShares step;
};
struct Simulation {
  spec::Mesh mesh;                 ///< of the main model
  std::vector<spec::Mesh> models;  ///< of each model
  std::int64_t node_ranks = 0;     ///< ranks per machine
  std::int64_t micro_batches = 0;
  std::int64_t sequences = 0, tokens = 0;  ///< per step over all ranks, including padding
  double seconds = 0;                      ///< per step
  double flops = 0;                        ///< per step over all ranks, including recomputation
  StepShares shares;
  std::vector<SimulatedStage> stages;  ///< in the order of `plans`
  StagePlans plans;

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] double flops_per_rank() const {
    return flops / seconds / static_cast<double>(mesh.ranks());
  }
  /// The largest part of a step except computation.
  [[nodiscard]] std::string binds() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/json.md
};
[[nodiscard]] Result<Simulation> simulate(const spec::Job& job, const Target& target);

}  // namespace neap::plan
