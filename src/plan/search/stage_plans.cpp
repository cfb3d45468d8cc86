#include "plan/search/stage_plans.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/pipeline_waits.h"
#include "plan/counting/tags.h"
#include "plan/search/common_choices.h"
#include "spec/recipe/job_change.h"
#include "step/pipeline/pipeline_schedule.h"

namespace neap::plan {

std::size_t StagePlans::binding() const {
  const auto most = std::max_element(
      stages.begin(), stages.end(),
      [](const StagePlan& a, const StagePlan& b) { return a.plan.peak < b.plan.peak; });
  return static_cast<std::size_t>(most - stages.begin());
}

double StagePlans::bubble() const {
  if (pipe == 1) return 0;
  return step::equal_bubble(pipe, static_cast<double>(micro_batches), chunks, zero_bubble);
}

std::int64_t ModelBlocks::count() const {
  std::int64_t sum = 0;
  for (const spec::BlockRange& range : ranges) sum += range.count;
  return sum;
}

std::string ModelBlocks::to_text() const {
  std::string out = "layers ";
  for (const spec::BlockRange& range : ranges)
    out += format("{}{} to {}", &range == ranges.data() ? "" : ", ", range.first,
                  range.first + range.count - 1);
  return out;
}

std::string StagePlans::name_of(std::size_t kind) const {
  const spec::RankKind& ranks = stages[kind].ranks;
  if (alike) return format("stage {}", kind + 1);
  if (ranks.count == 1) return format("rank {}", ranks.first);
  return format("ranks {} to {}", ranks.first, ranks.first + ranks.count - 1);
}

std::string StagePlans::blocks_of(std::size_t kind) const {
  const std::vector<ModelBlocks>& models = stages[kind].models;
  if (alike) return models.front().to_text();
  std::string out;
  for (const ModelBlocks& of : models)
    out += format("{}{} {}", out.empty() ? "" : ", ", to_string(of.model), of.to_text());
  return out;
}

double StagePlans::seconds() const {
  double most = 0;
  for (const StagePlan& stage : stages) most = std::max(most, stage.plan.seconds());
  return most;
}

std::string StagePlans::to_text() const {
  std::string text = format("{} {}", stages.size(), alike ? "stages" : "groups of ranks");
  if (pipe > 1) text += format(", {} micro-batches per mini-batch", micro_batches);
  text += format(": a step takes {:.4g} s (estimated)\n", seconds());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StagePlan& stage = stages[s];
    const double waits = stage.plan.stage_wait_seconds();
    text += format("  {}  {}  peak {}  computes {:.3g} s, waits {:.3g} s{}\n", name_of(s),
                   blocks_of(s), stage.plan.peak, stage.plan.seconds() - waits, waits,
                   s == binding() ? "  needs most" : "");
  }
  return text;
}

Json StagePlan::blocks_json() const {
  Json out = {{"first_rank", ranks.first},
              {"ranks", ranks.count},
              {"first_block", models.front().ranges.front().first},
              {"blocks", models.front().count()},
              {"models", Json::object()}};
  for (const ModelBlocks& of : models)
    out["models"][std::string(to_string(of.model))] = {{"first_block", of.ranges.front().first},
                                                       {"blocks", of.count()}};
  return out;
}

Json StagePlans::to_json() const {
  Json out = Json::array();
  for (const StagePlan& stage : stages) {
    Json& each = out.emplace_back(stage.blocks_json());
    each["peak"] = stage.plan.peak.count();
    each["seconds"] = stage.plan.seconds() - stage.plan.stage_wait_seconds();
    each["wait_seconds"] = stage.plan.stage_wait_seconds();
  }
  return out;
}

namespace {

// Sums values of model parts over the parts on each kind of rank.
std::vector<double> of_kinds(const std::vector<double>& parts, const spec::Mesh& mesh,
                             const std::vector<StagePlan>& kinds) {
  const auto stages = static_cast<std::size_t>(mesh.size(spec::Axis::kPipe));
  std::vector<double> out;
  for (const StagePlan& kind : kinds) {
    double& sum = out.emplace_back();
    const auto stage =
        static_cast<std::size_t>(mesh.coordinate(kind.ranks.first, spec::Axis::kPipe));
    for (std::size_t part = stage; part < parts.size(); part += stages) sum += parts[part];
  }
  return out;
}

Status add_all_waits(const spec::Job& job, const Target& target, StagePlans& plans) {
  std::vector<std::vector<StageWork>> work;
  for (const StagePlan& stage : plans.stages) work.push_back(stage_work(job, stage.plan));
  NEAP_TRY_ASSIGN(StagedStep step, run_stages(job, target, plans.stages.front().plan, work));
  for (std::size_t s = 0; s < work.size(); ++s) add_waits(job, step.waits[s], plans.stages[s].plan);
  if (!step.model) return {};
  plans.forward = of_kinds(step.forward, job.mesh(*step.model), plans.stages);
  plans.backward = of_kinds(step.backward, job.mesh(*step.model), plans.stages);
  plans.spans = std::move(step.spans);
  return {};
}

std::vector<spec::RankKind> kinds_of(const spec::Job& job) {
  return spec::rank_kinds(job.model_meshes());
}

Target target_of(const Target& target, const spec::RankKind& kind) {
  Target out = target;
  out.rank = kind.first;
  return out;
}

Result<std::vector<ModelBlocks>> blocks_of(const spec::Job& job, const spec::Recipe& recipe,
                                           std::int64_t rank) {
  std::vector<ModelBlocks> out;
  for (const spec::ModelSource& source : recipe.models) {
    NEAP_TRY_ASSIGN(const spec::JobModel model, spec::resolve(job, recipe, source.id, rank));
    std::vector<spec::BlockRange> ranges = model.shape.pipeline.ranges;
    if (ranges.empty()) ranges.push_back(model.shape.chunk(0).blocks);
    out.push_back({source.id, std::move(ranges)});
  }
  return out;
}

// Describes the first model that trains in stages.
void describe_pipeline(const spec::Job& job, const spec::Recipe& recipe, StagePlans& out) {
  for (const spec::Phase& phase : recipe.phases) {
    if (!phase.trains() || out.pipe > 1) continue;
    if (out.micro_batches == 0) out.micro_batches = micro_batches(job, phase);
    const std::int64_t stages = job.mesh(phase.model).size(spec::Axis::kPipe);
    if (stages == 1) continue;
    out.pipe = stages;
    out.micro_batches = micro_batches(job, phase);
    out.chunks = job.parallel.virtual_pipeline_model_parallel_size;
    out.zero_bubble = job.parallel.zero_bubble();
  }
}

// From the plans of all kinds.
Result<StagePlans> stage_plans_of(const spec::Job& job, const Target& target,
                                  std::vector<MemoryPlan> plans) {
  const spec::Recipe recipe = spec::describe(job);
  const std::vector<spec::RankKind> kinds = kinds_of(job);
  StagePlans out;
  out.alike = spec::are_stages(kinds, job.model_meshes());
  describe_pipeline(job, recipe, out);
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    NEAP_TRY_ASSIGN(std::vector<ModelBlocks> blocks, blocks_of(job, recipe, kinds[k].first));
    out.stages.push_back({kinds[k], std::move(blocks), std::move(plans[k])});
  }
  if (out.stages.size() > 1) NEAP_TRY(add_all_waits(job, target, out));
  return out;
}

// All kinds of rank, and how they agreed.
struct AgreedKinds {
  CommonChoices common;
  std::vector<KindPlans> kinds;
};
Result<AgreedKinds> plan_kinds(const spec::Job& job, const Target& target) {
  AgreedKinds out{CommonChoices(job), {}};
  for (const spec::RankKind& kind : kinds_of(job))
    out.kinds.emplace_back(job, target_of(target, kind));
  std::vector<KindOutcome> outcomes;
  do {
    outcomes.clear();
    for (KindPlans& kind : out.kinds) {
      NEAP_TRY_ASSIGN(KindOutcome outcome, kind.plan(out.common));
      outcomes.push_back(std::move(outcome));
    }
  } while (out.common.take(std::move(outcomes)));
  return out;
}

Result<StagePlans> taken(const spec::Job& job, const Target& target, AgreedKinds agreed) {
  std::vector<MemoryPlan> plans;
  for (KindPlans& kind : agreed.kinds) {
    NEAP_TRY_ASSIGN(MemoryPlan plan, kind.take(agreed.common));
    plans.push_back(std::move(plan));
  }
  spec::Job chosen = job;
  spec::apply(plans.front().changes, chosen);
  return stage_plans_of(chosen, target, std::move(plans));
}

}  // namespace

Result<StagePlans> plan_stages(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(AgreedKinds agreed, plan_kinds(job, target));
  if (const std::optional<std::size_t> kind = agreed.common.refused())
    return agreed.kinds[*kind].refusal(agreed.common);
  return taken(job, target, std::move(agreed));
}

Result<StagesOrLeast> plan_stages_or_least(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(AgreedKinds agreed, plan_kinds(job, target));
  StagesOrLeast out;
  out.least = agreed.common.least();
  if (agreed.common.refused()) return out;
  NEAP_TRY_ASSIGN(StagePlans plans, taken(job, target, std::move(agreed)));
  const MemoryPlan& most = plans.stages[plans.binding()].plan;
  if (most.fits()) {
    out.plans = std::move(plans);
  } else {
    out.least = most.peak;
  }
  return out;
}

}  // namespace neap::plan
