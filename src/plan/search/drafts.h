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
#include "plan/search/home_options.h"

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
  /// The homes that each model may have, in the recipe's order. `offloads`: homes with layers or
  /// their inputs off the device are included.
  [[nodiscard]] Result<std::vector<ModelOptions>> options(bool offloads, bool graphs);
  /// The operations that blocks recompute in a draft and need not; of one model, or of all.
  [[nodiscard]] Result<double> recomputation_seconds(const MemoryPlan& draft,
                                                     std::optional<spec::ModelId> model = {});

  /// Why the job's generations cannot decode in graphs; empty: they can.
  [[nodiscard]] std::string_view no_graphs_reason() const;

  /// The modes with groups of micro-batches per load of a block. It applies to offloaded and
  /// sharded models that support it and have no fixed choice. Groups are a whole mini-batch, half
  /// of it, a quarter, ...
  [[nodiscard]] std::vector<spec::StepModes> grouped(const spec::StepModes& modes) const;

 private:
  [[nodiscard]] Result<HomeOption> option(const spec::StepModes& modes, spec::ModelId model);
  /// The time of a model's phases without recomputation. Waits of phases with groups of
  /// micro-batches are apart; all of a phase in which groups may save more than these.
  [[nodiscard]] Status add_seconds(const MemoryPlan& draft, HomeOption& to, spec::ModelId model);
  /// The largest number of micro-batches per mini-batch, or in total, for which the model's layers
  /// may be loaded at once.
  [[nodiscard]] std::int64_t groupable(const spec::Recipe& recipe, spec::ModelId model) const;
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
