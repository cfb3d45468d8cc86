// Drafts of one job: its plans for each way to divide the updates, before and after moves and
// retentions are chosen.
//
// Models are read once. A phase is predicted once for each size of micro-batch, type of optimizer
// state and retention that it depends on; jobs that differ in these alone share the predictions.
//
// Threads   one.
// Failure   kInvalidArgument for settings that contradict each other or models that cannot be read.
// Cost      a prediction takes 0.1 to 2 ms, a draft of predicted phases a fraction of a millisecond.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/checkpoint_ladder.h"
#include "plan/checkpoint_search.h"
#include "plan/memory_plan.h"
#include "plan/model_choice.h"
#include "plan/tags.h"
#include "plan/transients.h"

namespace neap::plan {

/// What was predicted of jobs that differ in micro-batches, optimizer states and retentions alone.
struct Predictions {
  struct Key {
    spec::PhaseId phase{};
    spec::Batching batching;
    std::optional<spec::Dtype> states;  ///< of the optimizer, where the phase updates
    std::int64_t rung = 0;              ///< -1: the retention as configured
    Accuracy accuracy{};
    spec::PhaseStreaming streaming;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, PhasePlan> phases;
  std::map<std::pair<spec::ModelId, spec::Batching>, CheckpointLadder> ladders;
};

/// Where weights are while their model computes, of those models that can: a search takes the next one
/// where nothing fits, and of streamed ones where groups of micro-batches make it faster.
enum class WeightPlacement {
  kResident,
  kStreamed,           ///< blocks come one after another
  kStreamedTables,     ///< and embedding and head in turns with them
  kStreamedInputs,     ///< and what blocks read waits on the host for their backward
  kStreamedGradients,  ///< as kStreamed, and slices of gradients rest on the host, too
  kStreamedDisk,  ///< as kStreamed, kStreamedTables or kStreamedGradients, and blocks or slices rest on disk
};
inline constexpr std::array kWeightPlacements = {
    WeightPlacement::kResident,          WeightPlacement::kStreamed,
    WeightPlacement::kStreamedTables,    WeightPlacement::kStreamedInputs,
    WeightPlacement::kStreamedGradients, WeightPlacement::kStreamedDisk};

class Drafts {
 public:
  /// `job` and `predictions` outlive the drafts. `models` are the job's. `fixed`: choices that each draft takes.
  Drafts(const spec::Job& job, const Target& target, JobModels models, Predictions& predictions,
         std::vector<ModelChoice> fixed = {});
  /// The models of a job for a target.
  [[nodiscard]] static Result<JobModels> read(const spec::Job& job, const Target& target);

  /// Tags, phases and transients, without a capacity and a schedule. Where the plan chooses
  /// retentions they are the ones of least memory. `accuracy`: of the phases whose retention solve() chooses; it counts
  /// those again, exactly, that it takes.
  [[nodiscard]] Result<MemoryPlan> draft(const spec::ModelModes& modes,
                                         Accuracy accuracy = Accuracy::kExact);
  /// The minimum capacity for which solve() finds a plan of this draft. The largest number: none does.
  [[nodiscard]] Bytes least_capacity(MemoryPlan draft) const;
  /// Fills the schedule, and what blocks keep where the plan chooses it; false: nothing fits the
  /// capacity and takes less than `limit` seconds.
  [[nodiscard]] Result<bool> solve(MemoryPlan& plan, double limit);
  /// No plan that solve() makes of this draft takes less time: operations without recomputation.
  [[nodiscard]] Result<double> least_seconds(const MemoryPlan& draft);

  /// Every way to run the models that memory.optimizer_offload, memory.allow and fixed choices permit, with weights so placed;
  /// fewer phases first. Nothing is streamed where everything is to stay, unless memory.optimizer_offload says so.
  [[nodiscard]] std::vector<spec::ModelModes> modes(WeightPlacement weights) const;
  /// The same with groups of micro-batches that go through a block together, for the streamed and sliced models that
  /// can and of which no choice of these is fixed: those of a mini-batch at once, in two groups, in four ...
  [[nodiscard]] std::vector<spec::ModelModes> grouped(const spec::ModelModes& modes) const;

 private:
  /// Most micro-batches that the model's streamed phases run for a mini-batch, or in all.
  [[nodiscard]] std::int64_t groupable(const spec::Recipe& recipe, spec::ModelId model) const;
  /// Models whose weights can be streamed: first those that fixed choices stream, then those with the largest blocks.
  [[nodiscard]] std::vector<spec::ModelId> streamable() const;
  [[nodiscard]] std::vector<spec::ModelModes> update_modes() const;
  [[nodiscard]] std::vector<spec::ModelModes> disk_modes() const;
  /// What rests on the host of a model whose blocks come from there.
  struct OnHost {
    bool tables = false, inputs = false, gradients = false;
    static OnHost of(const ModelChoice& choice) {
      return {choice.streams_tables, choice.inputs_on_host, choice.gradients_on_host};
    }
  };
  OnHost stream(spec::ModelModes& modes, spec::ModelId model, const spec::Recipe& recipe,
                const OnHost& wanted) const;
  /// Of models whose choice is fixed with more than that, some that do not follow it.
  [[nodiscard]] std::vector<spec::ModelModes> placed_modes(WeightPlacement weights) const;
  /// A phase of the job's recipe with these modes.
  Result<PhasePlan> predict(const spec::ModelModes& modes, const spec::Phase& phase,
                            std::int64_t rung, Accuracy accuracy);
  Result<PhasePlan> predict_parts(const spec::ModelModes& modes, const spec::Phase& phase,
                                  std::int64_t rung);
  [[nodiscard]] std::vector<CheckpointChoice> choices(const spec::ModelModes& modes);
  const CheckpointLadder& ladder_of(const spec::Phase& phase);

  const spec::Job& job_;
  const Target& target_;
  std::vector<spec::ModelId> trained_;
  JobModels models_;
  Predictions& predictions_;
  std::vector<ModelChoice> fixed_;
};

}  // namespace neap::plan
