#include "plan/search/simulation.h"

#include <algorithm>

#include "spec/types/mesh.h"

namespace neap::plan {
namespace {

constexpr auto kPipe = static_cast<std::size_t>(spec::Axis::kPipe);

// The parts of a stage's step; all stages take `seconds`.
StepShares shares_of(const MemoryPlan& plan, double seconds) {
  StepShares out;
  for (std::size_t p = 0; p < plan.cycle(); ++p) {
    const PhasePlan& phase = plan.phases[p];
    double rest =
        phase.seconds - phase.wait_seconds - phase.transfer_seconds - phase.bubble_seconds;
    for (std::size_t a = 0; a < spec::kAxes; ++a) {
      out.axes[a] += phase.share * phase.axis_seconds[a];
      rest -= phase.axis_seconds[a];
    }
    out.axes[kPipe] += phase.share * phase.transfer_seconds;
    out.bubble += phase.share * phase.bubble_seconds;
    out.copies += phase.share * phase.wait_seconds;
    out.compute += phase.share * rest;
  }
  out.copies += plan.move_seconds;
  out.bubble += seconds - plan.seconds();
  return out;
}

StepShares mean_of(const std::vector<SimulatedStage>& stages, std::int64_t ranks) {
  StepShares out;
  for (const SimulatedStage& stage : stages) {
    const double share = static_cast<double>(stage.ranks) / static_cast<double>(ranks);
    out.compute += share * stage.step.compute;
    out.bubble += share * stage.step.bubble;
    out.copies += share * stage.step.copies;
    for (std::size_t a = 0; a < spec::kAxes; ++a) out.axes[a] += share * stage.step.axes[a];
  }
  return out;
}

double flops_of(const MemoryPlan& plan) {
  double sum = 0;
  for (std::size_t p = 0; p < plan.cycle(); ++p) sum += plan.phases[p].share * plan.phases[p].flops;
  return sum;
}

}  // namespace

double StepShares::sum() const {
  double out = compute + bubble + copies;
  for (const double axis : axes) out += axis;
  return out;
}

Result<Simulation> simulate(const spec::Job& job, const Target& target) {
  Simulation out;
  out.mesh = job.mesh();
  out.models = job.model_meshes();
  out.node_ranks = std::max<std::int64_t>(1, job.node_ranks());
  NEAP_TRY_ASSIGN(out.plans, plan_stages(job, target));
  out.micro_batches = out.plans.micro_batches;
  out.sequences = job.sequences_per_step();
  out.tokens = out.sequences * job.max_sequence_length();
  out.seconds = out.plans.seconds();
  for (const StagePlan& stage : out.plans.stages) {
    out.stages.push_back({stage.ranks.count, shares_of(stage.plan, out.seconds)});
    out.flops += static_cast<double>(stage.ranks.count) * flops_of(stage.plan);
  }
  out.shares = mean_of(out.stages, out.mesh.ranks());
  return out;
}

}  // namespace neap::plan
