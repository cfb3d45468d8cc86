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
  return static_cast<double>(stages.size() - 1) /
         static_cast<double>(micro_batches * chunks * (zero_bubble ? 3 : 1));
}

std::int64_t StagePlan::blocks() const {
  std::int64_t sum = 0;
  for (const spec::BlockRange& range : ranges) sum += range.count;
  return sum;
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
    std::string blocks;
    for (const spec::BlockRange& range : stage.ranges)
      blocks += format("{}{} to {}", blocks.empty() ? "" : ", ", range.first,
                       range.first + range.count - 1);
    text += format("  stage {}  blocks {}  peak {}  computes {:.3g} s, waits {:.3g} s{}\n", s + 1,
                   blocks, stage.plan.peak, stage.plan.seconds() - waits, waits,
                   s == binding() ? "  needs most" : "");
  }
  return text;
}

Json StagePlans::to_json() const {
  Json out = Json::array();
  for (const StagePlan& stage : stages)
    out.push_back({{"first_block", stage.ranges.front().first},
                   {"blocks", stage.blocks()},
                   {"peak", stage.plan.peak.count()},
                   {"seconds", stage.plan.seconds() - stage.plan.stage_wait_seconds()},
                   {"wait_seconds", stage.plan.stage_wait_seconds()}});
  return out;
}

namespace {

// Of what parts take.
std::vector<double> of_stages(const std::vector<double>& parts, std::size_t stages) {
  std::vector<double> out(parts.empty() ? 0 : stages);
  for (std::size_t part = 0; part < parts.size(); ++part) out[part % stages] += parts[part];
  return out;
}

Status add_all_waits(const spec::Job& job, const Target& target, StagePlans& plans) {
  std::vector<std::vector<StageWork>> work;
  for (const StagePlan& stage : plans.stages) work.push_back(stage_work(job, stage.plan));
  NEAP_TRY_ASSIGN(StagedStep step, run_stages(job, target, plans.stages.front().plan, work));
  for (std::size_t s = 0; s < work.size(); ++s) add_waits(job, step.waits[s], plans.stages[s].plan);
  plans.forward = of_stages(step.forward, work.size());
  plans.backward = of_stages(step.backward, work.size());
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
    std::vector<spec::BlockRange> ranges = model.shape.pipeline.ranges;
    if (ranges.empty()) ranges.push_back(model.shape.chunk(0).blocks);
    out.chunks = model.shape.chunks();
    out.zero_bubble = model.shape.pipeline.zero_bubble;
    out.stages.push_back({std::move(ranges), std::move(plan)});
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
