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
#include "plan/results/legal_homes.h"
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

Result<double> Drafts::least_seconds(const MemoryPlan& draft) {
  NEAP_TRY_ASSIGN(double sum, recomputation_seconds(draft));
  sum = draft.operation_seconds() - sum;
  if (grouped(draft.modes).empty()) return sum;
  const spec::Recipe recipe = spec::describe(job_, draft.modes);
  for (std::size_t p = 0; p < draft.cycle(); ++p) {
    // Groups reduce gradients of shards less often.
    if (recipe.phases[p].storage.shards_weights) return 0.0;
    const bool brings =
        recipe.phases[p].brings_layers() && recipe.phases[p].part != spec::TrainPart::kUpdate;
    if (brings) sum -= draft.phases[p].share * waits_of(draft.phases[p]);
  }
  return sum;
}

Result<double> Drafts::recomputation_seconds(const MemoryPlan& draft) {
  double sum = 0;
  for (const CheckpointChoice& choice : choices(draft.modes)) {
    NEAP_TRY_ASSIGN(const PhasePlan kept, choice.predict(0, Accuracy::kQuick));
    const PhasePlan& least = draft.phases[choice.phase];
    // Recomputation may wait for ranks, or fill the time of other waits.
    const double all = least.seconds - kept.seconds;
    sum += std::max({0.0, all, all - waits_of(least) + waits_of(kept)});
  }
  return sum;
}

bool Drafts::host_is_enough() const {
  return job_.memory.host_budget.is_zero() && target_.host_memory.is_zero() &&
         job_.memory.optimizer_offload.automatic && job_.memory.allows(spec::Measure::kStream) &&
         fixed_.empty();
}

std::vector<spec::StepModes> Drafts::update_modes() const {
  const spec::UpdateChoice choice = job_.memory.optimizer_offload;
  std::vector<spec::StepModes> all(1);
  for (const spec::ModelId model : trained_) {
    const ModelChoice* const fixed = choice_for(fixed_, model);
    std::vector<spec::StepModes> wider;
    for (std::size_t m = 0; m < spec::kUpdateModes; ++m) {
      const auto mode = static_cast<spec::UpdateMode>(m);
      if (!choice.automatic && choice.mode != mode) continue;
      if (fixed != nullptr && fixed->homes.update != mode) continue;
      const bool stays = choice.automatic && job_.residency() == spec::Residency::kAll;
      if (mode == spec::UpdateMode::kStreamed &&
          (stays || !job_.memory.allows(spec::Measure::kStream)))
        continue;
      if (mode == spec::UpdateMode::kDisk &&
          (stays || !job_.memory.allows(spec::Measure::kDisk) || host_is_enough()))
        continue;
      for (spec::StepModes modes : all) {
        modes.of(model).update = mode;
        if (fixed != nullptr && fixed->homes.layers == spec::Home::kDevice)
          modes.of(model).inputs = fixed->homes.inputs;
        wider.push_back(modes);
      }
    }
    all = std::move(wider);
  }
  return all;
}

std::vector<spec::StepModes> Drafts::modes(std::size_t offload) const {
  std::vector<spec::StepModes> out;
  for (const OffloadStep& each : kOffloads) {
    if (each.step != offload) continue;
    for (const spec::StepModes& modes : modes_with(each.homes))
      if (modes_follow(fixed_, modes)) out.push_back(modes);
  }
  for (spec::StepModes& modes : out)
    for (const ModelChoice& choice : fixed_)
      if (choice.homes.together > 0) modes.of(choice.model).together = choice.homes.together;
  return out;
}

std::vector<spec::StepModes> Drafts::modes_with(const spec::ModelHomes& wanted) const {
  std::vector<spec::StepModes> resident = update_modes();
  if (wanted == spec::ModelHomes()) return resident;
  std::vector<spec::StepModes> all;
  if (job_.residency() == spec::Residency::kAll ||
      !job_.memory.allows(spec::Measure::kStreamWeights) ||
      (wanted.layers == spec::Home::kDisk &&
       (!job_.memory.allows(spec::Measure::kDisk) || host_is_enough())))
    return all;
  // First the largest model alone, then with the next one, up to all.
  std::vector<spec::ModelId> models;
  const spec::Recipe recipe = spec::describe(job_);
  for (const spec::ModelId model : streamable()) {
    models.push_back(model);
    for (spec::StepModes modes : resident)
      if (offload(modes, models, wanted, recipe) &&
          std::find(all.begin(), all.end(), modes) == all.end())
        all.push_back(modes);
  }
  return all;
}

bool Drafts::offload(spec::StepModes& modes, const std::vector<spec::ModelId>& models,
                     const spec::ModelHomes& wanted, const spec::Recipe& recipe) const {
  // The homes that models without fixed choices have. The others follow their choices at any step.
  spec::ModelHomes placed;
  bool any = false;
  for (const spec::ModelId model : models) {
    const ModelChoice* const fixed = choice_for(fixed_, model);
    spec::ModelHomes& homes = modes.of(model);
    spec::ModelHomes asked = fixed == nullptr ? wanted : fixed->homes;
    asked.update = homes.update;
    asked.together = homes.together;
    const std::optional<spec::ModelHomes> legal =
        nearest_legal(recipe.find(model)->storage.with(asked), models_.at(model));
    if (!legal || legal->layers > wanted.layers) return false;
    homes = *legal;
    any = any || homes.layers == wanted.layers;
    if (fixed != nullptr) continue;
    for (const auto home : spec::kHomes) placed.*home = std::max(placed.*home, homes.*home);
  }
  // Otherwise an earlier step has these modes.
  const bool more = wanted.gradients != spec::Home::kDevice || wanted.inputs != spec::Home::kDevice;
  return any && placed.gradients == wanted.gradients && placed.inputs == wanted.inputs &&
         (more || placed.tables == wanted.tables);
}

std::int64_t Drafts::groupable(const spec::Recipe& recipe, spec::ModelId model) const {
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
    const ModelChoice* const fixed = choice_for(fixed_, model.id);
    const bool is_fixed = fixed != nullptr && fixed->homes.together > 0;
    if (!model.storage.brings_layers() || is_fixed) continue;
    // Micro-batches pass stages one by one.
    if (models_.at(model.id).shape.pipeline.stages > 1) continue;
    models.emplace_back(model.id, groupable(recipe, model.id));
    most = std::max(most, models.back().second);
  }
  std::vector<spec::StepModes> out;
  for (std::int64_t groups = 1; groups < most; groups *= 2) {
    if (step::div_up(most, groups) > kMostTogether) continue;
    spec::StepModes with = modes;
    for (const auto& [model, micro_batches] : models)
      with.of(model).together = step::div_up(micro_batches, groups);
    out.push_back(with);
  }
  return out;
}

std::vector<spec::ModelId> Drafts::streamable() const {
  struct Found {
    bool fixed;
    Bytes blocks;
    spec::ModelId model;
  };
  std::vector<Found> found;
  const spec::Recipe recipe = spec::describe(job_);
  for (const spec::ModelId model : spec::streamable(recipe)) {
    const ModelChoice* const fixed = choice_for(fixed_, model);
    if (fixed != nullptr && fixed->homes.layers == spec::Home::kDevice) continue;
    const ModelRole& role = models_.at(model);
    if (!exceeds_buffers(recipe.find(model)->storage, role)) continue;
    Bytes sum;
    for (const PartPlan& block : hosted_blocks(role, compute_dtype(job_, target_)))
      sum += block.bytes;
    found.push_back({fixed != nullptr, sum, model});
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.fixed, a.blocks) > std::pair(b.fixed, b.blocks);
  });
  std::vector<spec::ModelId> out;
  out.reserve(found.size());
  for (const Found& each : found) out.push_back(each.model);
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
