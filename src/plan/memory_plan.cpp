#include "plan/memory_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "plan/advice.h"
#include "plan/checkpoint_search.h"
#include "plan/phase_passes.h"
#include "plan/phase_schedule.h"
#include "plan/tags.h"
#include "plan/transients.h"

namespace neap::plan {
namespace {

// Drafts of one job that differ in their update modes: models are read once, and a phase that
// several drafts have is predicted once.
class Drafts {
 public:
  [[nodiscard]] static Result<Drafts> make(const spec::Job& job, const Target& target) {
    if (target.granularity.is_zero())
      return Status(ErrorCode::kInvalidArgument, "The device's granularity is zero");
    Drafts drafts(job, target);
    const spec::Recipe recipe = spec::describe(job);
    drafts.trained_ = recipe.trained();
    NEAP_TRY_ASSIGN(drafts.models_, read_models(job, recipe, compute_dtype(job, target)));
    return drafts;
  }

  [[nodiscard]] Result<MemoryPlan> draft(const spec::UpdateModes& modes) {
    MemoryPlan plan;
    plan.task = to_string(job_.task);
    plan.capacity = target_.capacity;
    plan.granularity = target_.granularity;
    plan.host_budget = job_.memory.host_budget;
    plan.link = target_.link;
    plan.rates_from = target_.rates_from;
    plan.updates = modes;
    const spec::Recipe recipe = spec::describe(job_, modes);
    plan.tags = build_tags(job_, recipe, models_, target_);
    for (const spec::ModelId id : trained_) {
      const ModelRole& role = models_.at(id);
      plan.activations.push_back({role.name, role.checkpoint_mode, role.checkpointing});
    }
    for (const spec::Phase& phase : recipe.phases) {
      NEAP_TRY_ASSIGN(PhasePlan planned, predict(phase));
      planned.times = phase.times;
      // Of a backward the body runs every mini-batch, of an update one.
      if (phase.part == spec::TrainPart::kUpdate)
        planned.seconds *= static_cast<double>(phase.times);
      plan.phases.push_back(std::move(planned));
      const std::size_t last = plan.phases.size() - 1;
      if (phase.part == spec::TrainPart::kUpdate && phase.times > 1)
        plan.loops.push_back({last - 1, last, phase.times});
    }
    add_windows(plan);
    return plan;
  }

  /// Fills the schedule, and what blocks keep where the plan chooses it.
  [[nodiscard]] Status solve(MemoryPlan& plan) {
    const std::vector<CheckpointChoice> choices = checkpoint_choices(plan.updates);
    return choices.empty() ? solve_residency(plan, job_.memory.residency)
                           : solve_checkpointing(plan, choices, job_.memory.residency);
  }

  /// What plans are compared by, in seconds. Operations differ only where retentions are chosen.
  [[nodiscard]] double cost(const MemoryPlan& plan) const {
    return chooses_retentions() ? plan.seconds() : plan.move_seconds;
  }
  /// No other draft can be cheaper.
  [[nodiscard]] bool ideal(const MemoryPlan& plan) const {
    return plan.moved_per_step.is_zero() && !chooses_retentions();
  }

  /// Every way to divide the updates that memory.update allows, those with fewer phases first.
  [[nodiscard]] std::vector<spec::UpdateModes> modes() const {
    const spec::UpdateChoice choice = job_.memory.update;
    std::vector<spec::UpdateModes> all(1);
    for (const spec::ModelId model : trained_) {
      std::vector<spec::UpdateModes> wider;
      for (std::size_t m = 0; m < spec::kUpdateModes; ++m) {
        const auto mode = static_cast<spec::UpdateMode>(m);
        if (!choice.automatic && choice.mode != mode) continue;
        for (spec::UpdateModes modes : all) {
          modes.set(model, mode);
          wider.push_back(modes);
        }
      }
      all = std::move(wider);
    }
    return all;
  }

 private:
  Drafts(const spec::Job& job, const Target& target) : job_(job), target_(target) {}

  Result<PhasePlan> predict(const spec::Phase& phase) {
    const auto known = predicted_.find(phase.id);
    if (known != predicted_.end()) return known->second;
    NEAP_TRY_ASSIGN(PhasePlan plan, predict_phase(job_, models_, target_, phase));
    return predicted_.emplace(phase.id, std::move(plan)).first->second;
  }

  [[nodiscard]] bool chooses_retentions() const {
    return std::any_of(trained_.begin(), trained_.end(), [&](spec::ModelId id) {
      return models_.at(id).checkpoint_mode == spec::CheckpointMode::kAuto;
    });
  }

  std::vector<CheckpointChoice> checkpoint_choices(const spec::UpdateModes& modes) {
    std::vector<CheckpointChoice> choices;
    const spec::Recipe recipe = spec::describe(job_, modes);
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      if (models_.at(trained_[i]).checkpoint_mode != spec::CheckpointMode::kAuto) continue;
      for (std::size_t p = 0; p < recipe.phases.size(); ++p) {
        const spec::Phase& phase = recipe.phases[p];
        if (phase.model != trained_[i] || !phase.trains() || phase.part == spec::TrainPart::kUpdate)
          continue;
        const CheckpointLadder& ladder = ladder_of(phase);
        choices.push_back({i, p, &ladder, [this, phase, &ladder](std::size_t rung) {
                             return predict(phase, ladder, rung);
                           }});
      }
    }
    return choices;
  }

  const CheckpointLadder& ladder_of(const spec::Phase& phase) {
    const auto known = ladders_.find(phase.model);
    if (known != ladders_.end()) return known->second;
    const CheckpointLadder ladder(models_.at(phase.model), compute_dtype(job_, target_),
                                  kernel_profile(job_, target_), training_sequences(job_, phase),
                                  job_.max_sequence_length());
    return ladders_.emplace(phase.model, ladder).first->second;
  }

  Result<PhasePlan> predict(const spec::Phase& phase, const CheckpointLadder& ladder,
                            std::size_t rung) {
    const auto key = std::pair(phase.id, rung);
    const auto known = on_rungs_.find(key);
    if (known != on_rungs_.end()) return known->second;
    spec::Checkpointing& retention = models_.slot(phase.model)->checkpointing;
    const spec::Checkpointing before = std::exchange(retention, ladder.at(rung));
    Result<PhasePlan> plan = predict_phase(job_, models_, target_, phase);
    retention = before;
    if (plan.ok()) on_rungs_.emplace(key, *plan);
    return plan;
  }

  // An exchange may bring a chunk of the next window before pages of the last one are free.
  static void add_windows(MemoryPlan& plan) {
    const Bytes chunk = arena::transfer_chunk_size(plan.granularity, plan.capacity);
    for (const TagPlan& tag : plan.tags) {
      Bytes window;
      for (const WindowPlan& w : tag.windows) window = std::max(window, w.bytes);
      for (std::size_t p = 0; p < plan.phases.size(); ++p) {
        if (tag.need[p] != Need::kStream) continue;
        plan.phases[p].window += window;
        if (tag.windows.size() > 1) plan.phases[p].headroom += std::min(window, chunk);
      }
    }
  }

  const spec::Job& job_;
  const Target& target_;
  std::vector<spec::ModelId> trained_;
  JobModels models_;
  std::map<spec::PhaseId, PhasePlan> predicted_;
  std::map<spec::ModelId, CheckpointLadder> ladders_;
  std::map<std::pair<spec::PhaseId, std::size_t>, PhasePlan> on_rungs_;
};

}  // namespace

const spec::Checkpointing& MemoryPlan::checkpointing(std::string_view model) const {
  static const spec::Checkpointing kNothing;
  const auto found = std::find_if(activations.begin(), activations.end(),
                                  [&](const ActivationPlan& a) { return a.model == model; });
  return found == activations.end() ? kNothing : found->checkpointing;
}

std::vector<std::pair<spec::SavedTensor, std::size_t>> ActivationPlan::recomputed() const {
  std::vector<std::pair<spec::SavedTensor, std::size_t>> out;
  for (std::size_t t = 0; t < spec::kSavedTensors; ++t) {
    const auto tensor = static_cast<spec::SavedTensor>(t);
    const auto blocks =
        std::count_if(checkpointing.blocks.begin(), checkpointing.blocks.end(),
                      [&](const spec::BlockRetention& block) { return !block.keeps(tensor); });
    if (blocks > 0) out.emplace_back(tensor, static_cast<std::size_t>(blocks));
  }
  return out;
}

double MemoryPlan::seconds() const {
  double sum = move_seconds;
  for (const PhasePlan& phase : phases) sum += phase.seconds;
  return sum;
}

double Link::seconds(Bytes out, Bytes in, Bytes mapped) const {
  const Bytes shared = std::min(out, in);
  const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
  return 2 * bytes(shared) / both + bytes(out - shared) / to_host + bytes(in - shared) / to_device +
         bytes(mapped) * remap;
}

Result<MemoryPlan> draft_plan(const spec::Job& job, const Target& target,
                              const spec::UpdateModes& modes) {
  NEAP_TRY_ASSIGN(Drafts drafts, Drafts::make(job, target));
  return drafts.draft(modes);
}

Result<MemoryPlan> cheapest_plan(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(Drafts drafts, Drafts::make(job, target));
  std::optional<MemoryPlan> best;
  Status refusal;
  Bytes least(~0ull);
  for (const spec::UpdateModes& modes : drafts.modes()) {
    NEAP_TRY_ASSIGN(MemoryPlan plan, drafts.draft(modes));
    const Status status = drafts.solve(plan);
    if (status.ok()) {
      if (!best || drafts.cost(plan) < drafts.cost(*best)) best = std::move(plan);
      if (drafts.ideal(*best)) break;
      continue;
    }
    if (status.code() != ErrorCode::kDoesNotFit) return status;
    if (const Bytes here = min_capacity(plan); here <= least) {
      least = here;
      refusal = status;
    }
  }
  if (!best) return refusal;
  return std::move(*best);
}

Result<Bytes> least_capacity(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(Drafts drafts, Drafts::make(job, target));
  Bytes least(~0ull);
  for (const spec::UpdateModes& modes : drafts.modes()) {
    NEAP_TRY_ASSIGN(const MemoryPlan plan, drafts.draft(modes));
    least = std::min(least, min_capacity(plan));
  }
  return least;
}

Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target) {
  Result<MemoryPlan> plan = cheapest_plan(job, target);
  if (plan.ok() || plan.status().code() != ErrorCode::kDoesNotFit) return plan;
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
  return Status(ErrorCode::kDoesNotFit, plan.status().message() + text);
}

}  // namespace neap::plan
