// Drafts of one job: a plan for each mode of updates and offloading, before moves and recomputation
// are chosen.
//
// Models are read once. A phase is predicted once per micro-batch size, type of optimizer states
// and checkpointing choice. Jobs that differ only in these share the predictions.
//
// Threads   one.
// Failure   kInvalidArgument for settings that contradict each other, or models that cannot be
//           read.
// Cost      a prediction takes 0.1 to 2 ms; a draft of predicted phases takes a fraction of a
//           millisecond.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/counting/tags.h"
#include "plan/counting/transients.h"
#include "plan/results/memory_plan.h"
#include "plan/search/checkpoint_ladder.h"
#include "plan/search/checkpoint_search.h"
#include "plan/search/model_choice.h"

namespace neap::plan {

/// Predictions for jobs that differ only in micro-batches, prefill passes, pages of the KV cache,
/// optimizer states and checkpointing.
struct Predictions {
  struct Key {
    spec::PhaseId phase{};
    spec::Batching batching;
    std::optional<spec::Dtype> states;  ///< of the optimizer, if the phase updates
    std::int64_t rung = 0;              ///< -1: checkpointing as configured
    Accuracy accuracy{};
    spec::ModelStorage storage;
    std::int64_t logits_chunk = 0;
    bool graphs = false;
    std::int64_t prefill_tokens = 0;
    std::int64_t cache_pages = 0, rollout_batch = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, PhasePlan> phases;
  TagSizes tags;
  std::map<std::pair<spec::ModelId, spec::Batching>, CheckpointLadder> ladders;
};

/// Homes that a search gives to models which can have them, and its step at which it does so. It
/// tries the next step if nothing fits. With offloaded layers it also tries larger groups of
/// micro-batches, if that is faster.
struct OffloadStep {
  std::size_t step = 0;
  spec::ModelHomes homes;
};
inline constexpr std::array kOffloads = [] {
  using spec::Home;
  using Homes = spec::ModelHomes;
  constexpr Home kHost = Home::kHost, kDisk = Home::kDisk;
  return std::array{
      OffloadStep{0, Homes{}},
      OffloadStep{1, Homes{.inputs = kHost}},
      OffloadStep{1, Homes{.layers = kHost}},
      OffloadStep{2, Homes{.layers = kHost, .tables = kHost}},
      OffloadStep{3, Homes{.layers = kHost, .tables = kHost, .inputs = kHost}},
      OffloadStep{4, Homes{.layers = kHost, .gradients = kHost}},
      OffloadStep{4, Homes{.layers = kHost, .inputs = kHost, .gradients = kHost}},
      OffloadStep{5, Homes{.layers = kDisk}},
      OffloadStep{5, Homes{.layers = kDisk, .tables = kHost}},
      OffloadStep{5, Homes{.layers = kDisk, .gradients = kDisk}},
      OffloadStep{5, Homes{.layers = kDisk, .tables = kHost, .inputs = kHost}},
      OffloadStep{5, Homes{.layers = kDisk, .inputs = kHost, .gradients = kDisk}},
  };
}();
inline constexpr std::size_t kOffloadSteps = kOffloads.back().step + 1;

class Drafts {
 public:
  /// `job` and `predictions` must outlive the drafts. `models` belong to the job. Each draft keeps
  /// the choices in `fixed`.
  Drafts(const spec::Job& job, const Target& target, JobModels models, Predictions& predictions,
         std::vector<ModelChoice> fixed = {});
  /// Reads the models of a job for a target.
  [[nodiscard]] static Result<JobModels> read(const spec::Job& job, const Target& target);

  /// A plan with tags, phases and temporaries, but without a capacity and a schedule. Checkpointing
  /// that the plan chooses is set to the least memory. `accuracy` applies to phases whose
  /// checkpointing solve() chooses; solve() predicts the chosen ones again exactly.
  [[nodiscard]] Result<MemoryPlan> draft(const spec::StepModes& modes,
                                         Accuracy accuracy = Accuracy::kExact);
  /// The minimum capacity for which solve() finds a plan of this draft. The largest number: none.
  [[nodiscard]] Bytes least_capacity(MemoryPlan draft) const;
  /// Fills the schedule, and checkpointing if the plan chooses it. Returns false if nothing fits
  /// the capacity with less than `limit` seconds.
  [[nodiscard]] Result<bool> solve(MemoryPlan& plan, double limit);
  /// A lower bound of the time of solve()'s plans with any groups: operations without recomputation
  /// and without waits that groups can remove. Zero if groups may save more than these.
  [[nodiscard]] Result<double> least_seconds(const MemoryPlan& draft);
  /// The operations that blocks recompute in a draft and need not.
  [[nodiscard]] Result<double> recomputation_seconds(const MemoryPlan& draft);

  /// Why the job's generations cannot decode in graphs; empty: they can.
  [[nodiscard]] std::string_view no_graphs_reason() const;

  /// Every way to run the models that memory.optimizer_offload, memory.allow and fixed choices
  /// permit, at a step of kOffloads; fewer phases first. Nothing is offloaded if everything is to
  /// stay, unless memory.optimizer_offload says so.
  [[nodiscard]] std::vector<spec::StepModes> modes(std::size_t offload) const;
  /// As modes(), with groups of micro-batches per load of a block. It applies to offloaded and
  /// sharded models that support it and have no fixed choice. Groups are a whole mini-batch, half
  /// of it, a quarter, ...
  [[nodiscard]] std::vector<spec::StepModes> grouped(const spec::StepModes& modes) const;

 private:
  /// The largest number of micro-batches that the model's offloaded phases run per mini-batch, or
  /// in total.
  [[nodiscard]] std::int64_t groupable(const spec::Recipe& recipe, spec::ModelId model) const;
  /// Models whose weights can be offloaded: first those that fixed choices offload, then those with
  /// the largest blocks.
  [[nodiscard]] std::vector<spec::ModelId> streamable() const;
  [[nodiscard]] std::vector<spec::StepModes> update_modes() const;
  /// Whether host memory is unlimited and may be used. Disks then save nothing and are slower.
  [[nodiscard]] bool host_is_enough() const;
  /// Modes in which models have these homes, as far as they can. They may conflict with models whose
  /// choice is fixed in more than the homes.
  [[nodiscard]] std::vector<spec::StepModes> modes_with(const spec::ModelHomes& wanted) const;
  /// Gives one model after another these homes. Returns false if no draft can have that.
  [[nodiscard]] bool offload(spec::StepModes& modes, const std::vector<spec::ModelId>& models,
                             const spec::ModelHomes& wanted, const spec::Recipe& recipe) const;
  /// Predicts a phase of the job's recipe with these modes.
  Result<PhasePlan> predict(const spec::StepModes& modes, const spec::Phase& phase,
                            std::int64_t rung, Accuracy accuracy);
  Result<PhasePlan> predict_parts(const spec::StepModes& modes, const spec::Phase& phase,
                                  std::int64_t rung);
  [[nodiscard]] std::vector<CheckpointChoice> choices(const spec::StepModes& modes);
  const CheckpointLadder& ladder_of(const spec::Phase& phase);

  const spec::Job& job_;
  const Target& target_;
  std::vector<spec::ModelId> trained_;
  JobModels models_;
  Predictions& predictions_;
  std::vector<ModelChoice> fixed_;
};

}  // namespace neap::plan
