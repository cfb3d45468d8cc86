#include "rlhf/run/run_plan.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/run_collectively.h"
#include "plan/counting/nccl_memory.h"
#include "plan/counting/pipeline_waits.h"
#include "plan/search/common_choices.h"
#include "rlhf/trainer/agreed_plan.h"
#include "rlhf/trainer/run_state.h"
#include "spec/model/layout.h"
#include "spec/recipe/job_change.h"
#include "spec/recipe/job_model.h"

namespace neap::rlhf {
namespace {

// Optimizer states keep the type of the checkpoint, so the plan must not choose it again.
void keep_state_type(RunStart& start) {
  spec::Job& job = start.job;
  if (!start.resume.found || !job.memory.allows(spec::Measure::kBf16States)) return;
  std::erase(job.memory.allow, spec::Measure::kBf16States);
  spec::apply(saved_choices(start.resume.state), job);
  throw_if_error(job.validate());
}

// A rank sends this of its stages to the ranks of other kinds. All ranks send as many numbers.
std::vector<double> packed(const std::vector<plan::StageWork>& stages) {
  std::vector<double> numbers;
  for (const plan::StageWork& work : stages) {
    numbers.insert(numbers.end(), {work.seconds, work.sums});
    for (const auto* chunks : {&work.forward, &work.backward, &work.weights})
      numbers.insert(numbers.end(), chunks->begin(), chunks->end());
  }
  return numbers;
}

// The inverse for stages of `chunks` chunks.
std::vector<plan::StageWork> unpacked(const double* at, const double* end, std::ptrdiff_t chunks) {
  std::vector<plan::StageWork> stages;
  for (; at != end; at += 2 + 3 * chunks) {
    const double *forward = at + 2, *backward = forward + chunks, *weights = backward + chunks;
    stages.push_back(
        {at[0], at[1], {forward, backward}, {backward, weights}, {weights, weights + chunks}});
  }
  return stages;
}

}  // namespace

RunPlan::RunPlan(RunStart& start) : start_(start) {
  open_copy_lanes();
  parallel::run_collectively(start.ranks, [&] { keep_state_type(start); });
  plan_ = agreed_plan(start.job, start.device.target, start.ranks);
  compare();
  spec::apply(plan_.changes, start.job);
  throw_if_error(start.job.validate());
  add_stage_waits();
}

void RunPlan::open_copy_lanes() const {
  if (!start_.device.target.cuda) return;
  std::string problem;
  for (const spec::ModelId model : start_.job.models()) {
    parallel::Communicator& shards = start_.groups.of(model).shards();
    if (!plan::uses_copy_lane(start_.job, model) || shards.has_copy_lane()) continue;
    if (problem.empty()) problem = shards.open_copy_lane();
  }
  if (problem.empty() || !start_.ranks.first()) return;
  const std::string line = format(
      "Gradients and weights go through NCCL: GPUs do not write into each other's memory ({})",
      problem);
  if (start_.job.parallel.transport == "auto") {
    log::info(line);
  } else {
    log::warn(line);
  }
}

// Ranks whose folders hold other models have tags of other sizes.
void RunPlan::compare() {
  for (const spec::ModelId model : start_.job.models()) compare_model(model);
  const std::vector<double> peaks = start_.ranks.join({static_cast<double>(plan_.peak.count())});
  for (const spec::RankKind& kind : start_.kinds)
    kind_peaks_.push_back(peaks.at(static_cast<std::size_t>(kind.first)));
}

// Stages of a model differ. Ranks that share its passes must agree on recomputation, because
// collectives run between recomputed operations.
void RunPlan::compare_model(spec::ModelId model) const {
  const spec::Job& job = start_.job;
  const parallel::Groups& groups = start_.groups.of(model);
  std::vector<parallel::Communicator::NamedText> texts;
  if (plan::is_chosen_alike(job, model)) {
    for (const plan::TagPlan& tag : plan_.tags)
      if (tag.id.model == model)
        texts.push_back({"the size of " + tag.name(), to_string(tag.bytes)});
  } else {
    const spec::JobModel own =
        value_or_throw(spec::resolve(job, spec::describe(job), model, start_.ranks.rank()));
    std::int64_t elements = 0;
    for (const spec::FlatUnit& unit : spec::flat_layout(own.shape, own.head))
      elements += unit.elements;
    texts.push_back(
        {format("the number of parameters of {}", own.name()), std::to_string(elements)});
  }
  groups.data().expect_same(texts);
  for (const plan::ActivationPlan& kept : plan_.activations) {
    if (kept.model != model) continue;
    std::vector<std::string> again;
    for (const auto& [tensor, blocks] : kept.recomputed())
      again.push_back(format("{} {}", to_string(tensor), blocks));
    texts.push_back({format("what layers of {} recompute", to_string(model)),
                     again.empty() ? "nothing" : joined(again, ", ")});
  }
  groups.tensor().expect_same(texts);
  groups.context().expect_same(texts);
}

// Every rank has planned only its own stages, so the waits between stages are added here.
void RunPlan::add_stage_waits() {
  if (start_.kinds.size() == 1) return;
  const std::vector<plan::StageWork> own = plan::stage_work(start_.job, plan_);
  const std::vector<double> numbers = packed(own);
  const std::vector<double> all = start_.ranks.join(numbers);
  const std::ptrdiff_t chunks = own.empty() ? 0 : std::ssize(own.back().forward);
  std::vector<std::vector<plan::StageWork>> work;
  for (const spec::RankKind& kind : start_.kinds) {
    const double* first = all.data() + kind.first * std::ssize(numbers);
    work.push_back(unpacked(first, first + numbers.size(), chunks));
  }
  const plan::StagedStep step =
      value_or_throw(plan::run_stages(start_.job, start_.device.target, plan_, work));
  plan::add_waits(start_.job, step.waits.at(spec::kind_of(start_.kinds, start_.ranks.rank())),
                  plan_);
}

std::string RunPlan::whose_plan() const {
  const std::vector<spec::RankKind>& kinds = start_.kinds;
  if (kinds.size() == 1) return "this is the plan of each";
  std::string peaks;
  for (const double peak : kind_peaks_)
    peaks += format("{}{}", peaks.empty() ? "" : ", ", Bytes(static_cast<std::uint64_t>(peak)));
  const auto most = std::max_element(kind_peaks_.begin(), kind_peaks_.end()) - kind_peaks_.begin();
  if (spec::are_stages(kinds, start_.job.model_meshes()))
    return format("peaks of the {} stages: {}; stage {} needs most. This is the plan of stage 1",
                  kinds.size(), peaks, most + 1);
  return format(
      "peaks of {} groups of ranks, with different stages of models: {}; rank {} needs most. "
      "This is the plan of rank 0",
      kinds.size(), peaks, kinds[static_cast<std::size_t>(most)].first);
}

}  // namespace neap::rlhf
