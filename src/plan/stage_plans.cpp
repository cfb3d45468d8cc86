#include "plan/stage_plans.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "plan/counted_backend.h"
#include "plan/pipeline_waits.h"
#include "plan/tags.h"

namespace neap::plan {

std::size_t StagePlans::binding() const {
  const auto most = std::max_element(
      stages.begin(), stages.end(),
      [](const StagePlan& a, const StagePlan& b) { return a.plan.peak < b.plan.peak; });
  return static_cast<std::size_t>(most - stages.begin());
}

double StagePlans::bubble() const {
  return static_cast<double>(stages.size() - 1) / static_cast<double>(micro_batches);
}

double StagePlans::seconds() const {
  double most = 0;
  for (const StagePlan& stage : stages) most = std::max(most, stage.plan.seconds());
  return most;
}

std::string StagePlans::to_text() const {
  std::string text =
      format("{} stages, {} micro-batches a mini-batch: a step takes {:.4g} s by the rates\n",
             stages.size(), micro_batches, seconds());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StagePlan& stage = stages[s];
    const double waits = stage.plan.stage_wait_seconds();
    text += format("  stage {}  blocks {} to {}  peak {}  computes {:.3g} s, waits {:.3g} s{}\n",
                   s + 1, stage.first_block, stage.first_block + stage.blocks - 1, stage.plan.peak,
                   stage.plan.seconds() - waits, waits, s == binding() ? "  needs most" : "");
  }
  return text;
}

Json StagePlans::to_json() const {
  Json out = Json::array();
  for (const StagePlan& stage : stages)
    out.push_back({{"first_block", stage.first_block},
                   {"blocks", stage.blocks},
                   {"peak", stage.plan.peak.count()},
                   {"seconds", stage.plan.seconds() - stage.plan.stage_wait_seconds()},
                   {"wait_seconds", stage.plan.stage_wait_seconds()}});
  return out;
}

namespace {

Status add_all_waits(const spec::Job& job, const Target& target, StagePlans& plans) {
  std::vector<std::vector<StageWork>> work;
  for (const StagePlan& stage : plans.stages) work.push_back(stage_work(job, stage.plan));
  NEAP_TRY_ASSIGN(StagedStep step, run_stages(job, target, plans.stages.front().plan, work));
  for (std::size_t s = 0; s < work.size(); ++s) add_waits(job, step.waits[s], plans.stages[s].plan);
  plans.forward = std::move(step.forward);
  plans.backward = std::move(step.backward);
  plans.spans = std::move(step.spans);
  return {};
}

std::int64_t stages_of(const spec::Job& job) {
  return job.mesh().size(spec::Axis::kPipe);
}

Target target_of_stage(const spec::Job& job, const Target& target, std::int64_t stage) {
  Target out = target;
  out.rank = stage * (job.mesh().ranks() / stages_of(job));
  return out;
}

Status in_stage(const spec::Job& job, const Status& status, std::int64_t stage) {
  const std::int64_t stages = stages_of(job);
  return stages == 1
             ? status
             : Status(status).with_context(format("planning stage {} of {}", stage + 1, stages));
}

// Of the plans of each stage.
Result<StagePlans> stage_plans_of(const spec::Job& job, const Target& target,
                                  std::vector<MemoryPlan> plans) {
  const spec::Recipe recipe = spec::describe(job);
  StagePlans out;
  for (const spec::Phase& phase : recipe.phases)
    if (phase.trains() && out.micro_batches == 0) out.micro_batches = micro_batches(job, phase);
  for (MemoryPlan& plan : plans) {
    const Target here = target_of_stage(job, target, std::ssize(out.stages));
    NEAP_TRY_ASSIGN(const spec::JobModel model,
                    spec::resolve(job, recipe, recipe.models.front().id, here.rank));
    out.stages.push_back({model.shape.first_block(), model.shape.blocks(), std::move(plan)});
  }
  if (out.stages.size() > 1) NEAP_TRY(add_all_waits(job, target, out));
  return out;
}

}  // namespace

Result<StagePlans> plan_stages(const spec::Job& job, const Target& target) {
  std::vector<MemoryPlan> plans;
  for (std::int64_t s = 0; s < stages_of(job); ++s) {
    Result<MemoryPlan> plan = make_plan(job, target_of_stage(job, target, s));
    if (!plan.ok()) return in_stage(job, plan.status(), s);
    plans.push_back(*std::move(plan));
  }
  return stage_plans_of(job, target, std::move(plans));
}

Result<StagesOrLeast> plan_stages_or_least(const spec::Job& job, const Target& target) {
  StagesOrLeast out;
  std::vector<MemoryPlan> plans;
  for (std::int64_t s = 0; s < stages_of(job); ++s) {
    Result<PlanOrLeast> found = plan_or_least(job, target_of_stage(job, target, s));
    if (!found.ok()) return in_stage(job, found.status(), s);
    if (found->plan) {
      plans.push_back(*std::move(found->plan));
    } else {
      out.least = std::max(out.least, found->least);
    }
  }
  if (std::ssize(plans) < stages_of(job)) return out;
  NEAP_TRY_ASSIGN(out.plans, stage_plans_of(job, target, std::move(plans)));
  return out;
}

}  // namespace neap::plan
