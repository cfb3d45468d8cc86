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

}  // namespace

Result<StagePlans> plan_stages(const spec::Job& job, const Target& target) {
  const spec::Mesh mesh = job.mesh();
  const std::int64_t stages = mesh.size(spec::Axis::kPipe);
  const spec::Recipe recipe = spec::describe(job);
  StagePlans out;
  for (const spec::Phase& phase : recipe.phases)
    if (phase.trains() && out.micro_batches == 0) out.micro_batches = micro_batches(job, phase);
  for (std::int64_t s = 0; s < stages; ++s) {
    Target here = target;
    here.rank = s * (mesh.ranks() / stages);
    Result<MemoryPlan> plan = make_plan(job, here);
    if (!plan.ok())
      return Status(plan.status()).with_context(format("planning stage {} of {}", s + 1, stages));
    NEAP_TRY_ASSIGN(const spec::JobModel model,
                    spec::resolve(job, recipe, recipe.models.front().id, here.rank));
    out.stages.push_back({model.shape.first_block(), model.shape.blocks(), std::move(*plan)});
  }
  if (stages > 1) NEAP_TRY(add_all_waits(job, target, out));
  return out;
}

}  // namespace neap::plan
