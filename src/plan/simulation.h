// A step of all ranks of a job without the machines: its seconds, what they are spent on, and the memory of each rank.
//
// Model     Ranks of the same stages of pipelines do the same work. Of each kind one plan is made, by counting its passes,
//           with what stages wait for each other (plan/stage_plans.h). Ranks that are equal are simulated once.
// Threads   functions without state.
// Failure   as make_plan, with the stage.
// Cost      as plan_stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/memory_plan.h"
#include "plan/stage_plans.h"

namespace neap::plan {

/// What ranks spend a step on. The mean of all ranks.
struct StepShares {
  double compute = 0;  ///< seconds of operations, forward to update
  step::OfAxes<double>
      axes{};  ///< of collectives of an axis that nothing hides, and of transfers between stages
  double bubble = 0;  ///< that a stage waits for others
  double copies = 0;  ///< that operations wait for the link to the host
  [[nodiscard]] double sum() const;
};
struct SimulatedStage {
  std::int64_t ranks = 1;
  StepShares step;
};
struct Simulation {
  spec::Mesh mesh;                 ///< the main model's
  std::vector<spec::Mesh> models;  ///< of each
  std::int64_t node_ranks = 0;     ///< of a machine
  std::int64_t micro_batches = 0;
  std::int64_t sequences = 0, tokens = 0;  ///< of a step over all ranks, padding included
  double seconds = 0;                      ///< of a step
  double flops = 0;                        ///< of a step over all ranks, recomputation included
  StepShares shares;
  std::vector<SimulatedStage> stages;  ///< as `plans` has them
  StagePlans plans;

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] double flops_per_rank() const {
    return flops / seconds / static_cast<double>(mesh.ranks());
  }
  /// What takes most of a step besides computing.
  [[nodiscard]] std::string binds() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/plan-json.md
};
[[nodiscard]] Result<Simulation> simulate(const spec::Job& job, const Target& target);

}  // namespace neap::plan
