#include "plan/search/drafts.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "plan/counting/batch_memory.h"
#include "plan/counting/checkpoint_copy.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/transients.h"
#include "plan/residency/least_capacity.h"
#include "plan/residency/phase_schedule.h"
#include "plan/results/kernel_checks.h"
#include "step/generation/decode_graphs.h"

namespace neap::plan {
namespace {

constexpr std::int64_t kAsConfigured = -1;
// Memory of a group grows with its size, and so does the time to count it.
constexpr std::int64_t kMostTogether = 32;

double waits_of(const PhasePlan& phase) {
  return phase.wait_seconds + phase.peer_seconds;
}

}  // namespace

Drafts::Drafts(const spec::Job& job, const Target& target, JobModels models,
               Predictions& predictions, std::vector<ModelChoice> fixed)
    : job_(job),
      target_(target),
      trained_(spec::describe(job).trained()),
      models_(std::move(models)),
      predictions_(predictions),
      fixed_(std::move(fixed)) {
  for (const ModelChoice& choice : fixed_)
    if (choice.retention) models_.slot(choice.model)->checkpointing = *choice.retention;
  if (job.memory.allows(spec::Measure::kRecompute)) return;
  for (const spec::ModelId id : trained_) {
    ModelRole& role = *models_.slot(id);
    if (role.checkpoint_mode == spec::CheckpointMode::kAuto)
      role.checkpointing = spec::checkpointing(spec::CheckpointMode::kNone, role.shape);
  }
}

Result<JobModels> Drafts::read(const spec::Job& job, const Target& target) {
  if (target.granularity.is_zero())
    return Status(ErrorCode::kInvalidArgument, "The device's granularity is zero");
  if (target.cuda && compute_dtype(job, target) == spec::Dtype::kFloat64)
    return Status(ErrorCode::kInvalidArgument,
                  "device.dtype \"float64\" is for the CPU (device.kind = \"cpu\"); a GPU "
                  "takes \"float32\" or \"bfloat16\"");
  NEAP_TRY_ASSIGN(JobModels models,
                  read_models(job, spec::describe(job), compute_dtype(job, target), target.rank,
                              target.folders));
  NEAP_TRY(check_pages(job, target, models));
  NEAP_TRY(check_linear_dtype(job, target, models));
  return models;
}

Result<MemoryPlan> Drafts::draft(const spec::StepModes& modes, Accuracy accuracy) {
  MemoryPlan plan;
  plan.task = to_string(job_.task);
  plan.granularity = target_.granularity;
  plan.host_budget =
      job_.memory.host_budget.is_zero() ? target_.host_memory : job_.memory.host_budget;
  plan.batch_bytes = batch_bytes(job_);
  plan.may_move = job_.memory.allows(spec::Measure::kMove);
  plan.overlap = job_.memory.overlap;
  plan.link = target_.link;
  plan.rates_from = target_.rates_from;
  const step::OwnKernels own = own_kernels(job_, target_);
  plan.own_kernels = own.on;
  plan.fp8 = job_.device.multiplies_in_fp8();
  if (job_.device.takes_own_kernels()) plan.no_own_kernels = target_.no_own_kernels;
  plan.modes = modes;
  const spec::Recipe recipe = spec::describe(job_, modes);
  plan.tags = build_tags(job_, recipe, models_, target_, predictions_.tags);
  plan.checkpoint_copy = checkpoint_copy(job_, recipe, plan.tags);
  for (const spec::ModelId id : trained_) {
    const ModelRole& role = models_.at(id);
    plan.activations.push_back(
        {id, role.checkpoint_mode, role.checkpointing,
         spec::saved_tensors(role.shape, own.take(compute_dtype(job_, target_)))});
  }
  std::vector<Accuracy> counted(recipe.phases.size(), Accuracy::kExact);
  for (const CheckpointChoice& choice : choices(modes)) counted[choice.phase] = accuracy;
  for (const spec::Phase& phase : recipe.phases) {
    NEAP_TRY_ASSIGN(PhasePlan planned,
                    predict(modes, phase, kAsConfigured, counted[plan.phases.size()]));
    planned.times = phase.times;
    planned.share = phase.share;
    // A backward phase runs every mini-batch; an update phase runs one.
    if (phase.part == spec::TrainPart::kUpdate) {
      const PhasePlan once = planned;
      add_work(planned, once, phase.times - 1);
    }
    plan.phases.push_back(std::move(planned));
    const std::size_t last = plan.phases.size() - 1;
    if (phase.part == spec::TrainPart::kUpdate && phase.times > 1)
      plan.loops.push_back({last - 1, last, phase.times});
  }
  size_graphs(plan.tags, plan.phases, target_.granularity);
  return plan;
}

std::string_view Drafts::no_graphs_reason() const {
  const spec::Recipe recipe = spec::describe(job_);
  const spec::Phase* const phase = recipe.find(spec::Body::kGenerate);
  if (phase == nullptr) return "the job does not generate";
  if (job_.rollout.graphs == "off") return "actor_rollout_ref.rollout.graphs is off";
  const step::SamplingOptions sampling = job_.task == spec::Task::kEval
                                             ? step::sampling_options(job_.rollout.val_kwargs)
                                             : step::sampling_options(job_.rollout);
  return step::no_graphs_reason(models_.at(phase->model).generating(),
                                {target_.cuda, compute_dtype(job_, target_),
                                 job_.generation_mesh().size(spec::Axis::kTensor), sampling});
}

Result<bool> Drafts::solve(MemoryPlan& plan, double limit) {
  const std::vector<CheckpointChoice> open = choices(plan.modes);
  if (!open.empty()) return solve_checkpointing(plan, open, job_.residency(), limit);
  NEAP_TRY_ASSIGN(const bool solved, solve_if_fits(plan, job_.residency(), limit));
  return solved && plan.fits() && plan.seconds() < limit;
}

Bytes Drafts::least_capacity(MemoryPlan draft) const {
  if (job_.residency() == spec::Residency::kAuto) return min_capacity(draft);
  draft.capacity = Bytes();
  const Result<bool> solved = solve_if_fits(draft, spec::Residency::kAll);
  return solved.ok() && *solved ? draft.peak : Bytes(~0ull);
}

Result<std::vector<ModelOptions>> Drafts::options(bool offloads, bool graphs) {
  std::vector<ModelOptions> out;
  spec::StepModes first{.graphs = graphs};
  std::vector<std::vector<spec::ModelHomes>> permitted;
  const spec::Recipe recipe = spec::describe(job_);
  for (const spec::ModelSource& source : recipe.models) {
    permitted.push_back(permitted_homes(job_, target_, models_.at(source.id), fixed_, offloads));
    out.push_back({source.id, {}});
    if (permitted.back().empty()) return out;
    first.of(source.id) = permitted.back().front();
  }
  for (std::size_t m = 0; m < out.size(); ++m) {
    for (const spec::ModelHomes& homes : permitted[m]) {
      spec::StepModes modes = first;
      modes.of(out[m].model) = homes;
      NEAP_TRY_ASSIGN(const HomeOption option, this->option(modes, out[m].model));
      out[m].options.push_back(option);
    }
  }
  return out;
}

Result<HomeOption> Drafts::option(const spec::StepModes& modes, spec::ModelId model) {
  NEAP_TRY_ASSIGN(const MemoryPlan plan, draft(modes, Accuracy::kQuick));
  HomeOption out{modes.of(model)};
  NEAP_TRY(add_seconds(plan, out, model));
  const spec::Recipe recipe = spec::describe(job_, modes);
  const auto is_kept = [&](const TagPlan& tag) {
    return tag.contents != Contents::kScratch && plan.in_cycle(tag);
  };
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (recipe.phases[p].model != model) continue;
    Bytes scratch = plan.phases[p].transient, kept;
    for (const TagPlan& tag : plan.tags)
      if (tag.need[p] == Need::kNeed && (tag.id.model == model || tag.is_outside()))
        (is_kept(tag) ? kept : scratch) += tag.bytes;
    out.needed = std::max(out.needed, scratch + kept);
    if (p < plan.cycle()) out.scratch = std::max(out.scratch, scratch);
  }
  for (const TagPlan& tag : plan.tags) {
    if (tag.id.model != model) continue;
    if (is_kept(tag)) out.kept += tag.bytes;
    out.host += tag.hosted.bytes();
  }
  return out;
}

Status Drafts::add_seconds(const MemoryPlan& draft, HomeOption& to, spec::ModelId model) {
  const spec::Recipe recipe = spec::describe(job_, draft.modes);
  const bool groups = groupable(recipe, model) > 1;
  for (std::size_t p = 0; p < draft.cycle(); ++p) {
    const spec::Phase& phase = recipe.phases[p];
    if (phase.model != model) continue;
    const double seconds = draft.phases[p].share * draft.phases[p].seconds;
    const bool brings = phase.brings_layers() && phase.part != spec::TrainPart::kUpdate;
    double waits = groups && brings ? draft.phases[p].share * waits_of(draft.phases[p]) : 0;
    // Groups reduce gradients of shards less often.
    if (groups && phase.storage.shards_weights) {
      waits = seconds;
      to.open = true;
    }
    to.seconds += seconds - waits;
    to.waits += waits;
    if (waits == 0) to.peers += draft.phases[p].share * draft.phases[p].peer_seconds;
  }
  NEAP_TRY_ASSIGN(const double recomputed, recomputation_seconds(draft, model));
  to.seconds = std::max(0.0, to.seconds - recomputed);
  return {};
}

Result<double> Drafts::recomputation_seconds(const MemoryPlan& draft,
                                             std::optional<spec::ModelId> model) {
  double sum = 0;
  for (const CheckpointChoice& choice : choices(draft.modes)) {
    if (model && draft.activations[choice.activation].model != *model) continue;
    NEAP_TRY_ASSIGN(const PhasePlan kept, choice.predict(0, Accuracy::kQuick));
    const PhasePlan& least = draft.phases[choice.phase];
    // Recomputation may wait for ranks, or fill the time of other waits.
    const double all = least.seconds - kept.seconds;
    sum += std::max({0.0, all, all - waits_of(least) + waits_of(kept)});
  }
  return sum;
}

std::int64_t Drafts::groupable(const spec::Recipe& recipe, spec::ModelId model) const {
  const ModelChoice* const fixed = choice_for(fixed_, model);
  // Micro-batches pass stages one by one.
  if (models_.at(model).shape.pipeline.stages > 1 ||
      (fixed != nullptr && fixed->homes.together > 0))
    return 1;
  std::int64_t most = 1;
  for (const spec::Phase& phase : recipe.phases) {
    if (phase.model != model || !phase.brings_layers() || phase.part == spec::TrainPart::kUpdate)
      continue;
    most = std::max(most, micro_batches(job_, phase));
  }
  return most;
}

std::vector<spec::StepModes> Drafts::grouped(const spec::StepModes& modes) const {
  const spec::Recipe recipe = spec::describe(job_, modes);
  std::vector<std::pair<spec::ModelId, std::int64_t>> models;
  std::int64_t most = 1;
  for (const spec::ModelSource& model : recipe.models) {
    models.emplace_back(model.id, groupable(recipe, model.id));
    most = std::max(most, models.back().second);
  }
  std::vector<spec::StepModes> out;
  for (std::int64_t groups = 1; groups < most; groups *= 2) {
    if (step::div_up(most, groups) > kMostTogether) continue;
    spec::StepModes with = modes;
    for (const auto& [model, micro_batches] : models)
      if (micro_batches > 1) with.of(model).together = step::div_up(micro_batches, groups);
    out.push_back(with);
  }
  return out;
}

// The checkpointing of a rung replaces the configured one while its phase is counted.
Result<PhasePlan> Drafts::predict(const spec::StepModes& modes, const spec::Phase& phase,
                                  std::int64_t rung, Accuracy accuracy) {
  ModelRole& role = *models_.slot(phase.model);
  const bool has_batches = phase.part != spec::TrainPart::kUpdate;
  const bool generates = phase.body == spec::Body::kGenerate;
  const Predictions::Key key{
      phase.id,
      has_batches ? spec::batching_of(job_, phase) : spec::Batching(),
      phase.updates() ? std::optional(role.optimizer.state_dtype) : std::nullopt,
      rung,
      accuracy,
      phase.storage,
      phase.logits_chunk,
      phase.graphs,
      generates ? job_.rollout.max_num_batched_tokens : 0,
      generates ? step::cache_shape(job_).pages : 0,
      generates ? job_.rollout_batch() : 0};
  const auto known = predictions_.phases.find(key);
  if (known != predictions_.phases.end()) return known->second;
  if (accuracy == Accuracy::kQuick && phase.part == spec::TrainPart::kAll)
    return predict_parts(modes, phase, rung);
  const spec::Checkpointing before = role.checkpointing;
  if (rung != kAsConfigured)
    role.checkpointing = ladder_of(phase).at(static_cast<std::size_t>(rung));
  Result<PhasePlan> plan = predict_phase(job_, models_, target_, phase, accuracy);
  role.checkpointing = before;
  if (plan.ok()) predictions_.phases.emplace(key, *plan);
  return plan;
}

// Predicts a joint training phase from its backward and its update as separate phases. Their
// predictions are known for every update mode and type of states.
Result<PhasePlan> Drafts::predict_parts(const spec::StepModes& modes, const spec::Phase& phase,
                                        std::int64_t rung) {
  spec::StepModes split = modes;
  split.of(phase.model).update = spec::UpdateMode::kSplit;
  const spec::Recipe recipe = spec::describe(job_, split);
  const spec::Phase& update = *recipe.find(phase.body, spec::TrainPart::kUpdate);
  NEAP_TRY_ASSIGN(
      PhasePlan out,
      predict(split, *recipe.find(phase.body, spec::TrainPart::kBackward), rung, Accuracy::kQuick));
  NEAP_TRY_ASSIGN(const PhasePlan stepped, predict(split, update, kAsConfigured, Accuracy::kExact));
  out.id = phase.id;
  out.transient = std::max(out.transient, stepped.transient);
  out.transient_allocated = std::max(out.transient_allocated, stepped.transient_allocated);
  add_work(out, stepped, update.times);
  return out;
}

std::vector<CheckpointChoice> Drafts::choices(const spec::StepModes& modes) {
  std::vector<CheckpointChoice> out;
  if (!job_.memory.allows(spec::Measure::kRecompute)) return out;
  const spec::Recipe recipe = spec::describe(job_, modes);
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const ModelChoice* const fixed = choice_for(fixed_, trained_[i]);
    if (fixed != nullptr && fixed->retention) continue;
    if (models_.at(trained_[i]).checkpoint_mode != spec::CheckpointMode::kAuto) continue;
    for (std::size_t p = 0; p < recipe.phases.size(); ++p) {
      const spec::Phase& phase = recipe.phases[p];
      if (phase.model != trained_[i] || !phase.runs_backward()) continue;
      const CheckpointLadder& ladder = ladder_of(phase);
      out.push_back(
          {i, p, &ladder, [this, modes, phase, &ladder](std::size_t rung, Accuracy accuracy) {
             // The draft already has the last rung's checkpointing.
             return rung == ladder.last()
                        ? predict(modes, phase, kAsConfigured, Accuracy::kExact)
                        : predict(modes, phase, static_cast<std::int64_t>(rung), accuracy);
           }});
    }
  }
  return out;
}

const CheckpointLadder& Drafts::ladder_of(const spec::Phase& phase) {
  const auto key = std::pair(phase.model, spec::batching_of(job_, phase));
  const auto known = predictions_.ladders.find(key);
  if (known != predictions_.ladders.end()) return known->second;
  const CheckpointLadder ladder(models_.at(phase.model), compute_dtype(job_, target_),
                                kernel_profile(job_, target_, &phase),
                                micro_batch_spans(job_, phase));
  return predictions_.ladders.emplace(key, ladder).first->second;
}

}  // namespace neap::plan
