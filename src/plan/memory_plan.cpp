#include "plan/memory_plan.h"

#include <algorithm>

#include "base/format.h"
#include "plan/advice.h"
#include "plan/phase_schedule.h"
#include "plan/tags.h"
#include "plan/transients.h"

namespace neap::plan {

const spec::Checkpointing& MemoryPlan::checkpointing(std::string_view model) const {
  static const spec::Checkpointing kNothing;
  const auto found = std::find_if(activations.begin(), activations.end(),
                                  [&](const ActivationPlan& a) { return a.model == model; });
  return found == activations.end() ? kNothing : found->checkpointing;
}

Result<MemoryPlan> draft_plan(const spec::Job& job, const Target& target) {
  if (target.granularity.is_zero())
    return Status(ErrorCode::kInvalidArgument, "The device's granularity is zero");
  MemoryPlan plan;
  plan.task = job.task;
  plan.capacity = target.capacity;
  plan.granularity = target.granularity;
  plan.host_budget = job.memory.host_budget;
  NEAP_TRY_ASSIGN(const spec::Recipe recipe, spec::describe(job));
  NEAP_TRY_ASSIGN(const JobModels models, read_models(job, recipe));
  plan.tags = build_tags(job, recipe, models, target);
  for (const spec::ModelSource& source : recipe.models) {
    const ModelRole& role = models.at(source.id);
    if (role.trained)
      plan.activations.push_back({role.name, role.checkpoint_mode, role.checkpointing});
  }
  NEAP_TRY_ASSIGN(plan.phases, predict_transients(job, recipe, models, target));
  return plan;
}

Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(MemoryPlan plan, draft_plan(job, target));
  Status status = solve_residency(plan, job.memory.residency);
  if (status.ok()) return plan;
  if (status.code() != ErrorCode::kDoesNotFit) return status;
  std::string suggestions;
  const std::vector<Suggestion> found = find_knobs(job, target);
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 5); ++i) {
    std::string overrides;
    for (const std::string& o : found[i].overrides) overrides += (overrides.empty() ? "" : " ") + o;
    suggestions +=
        format("\n  {}: fits in {} ({})", overrides, found[i].min_capacity, found[i].effect);
  }
  const std::string text = suggestions.empty()
                               ? ""
                               : ". What lowers it, each alone:" + suggestions +
                                     "\n`neap plan --fit SIZE` looks for a combination";
  return Status(ErrorCode::kDoesNotFit, status.message() + text);
}

}  // namespace neap::plan
