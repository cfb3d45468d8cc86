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

/// Predictions for jobs that differ only in micro-batches, optimizer states and checkpointing.
struct Predictions {
  struct Key {
    spec::PhaseId phase{};
    spec::Batching batching;
    std::optional<spec::Dtype> states;  ///< of the optimizer, if the phase updates
    std::int64_t rung = 0;              ///< -1: checkpointing as configured
    Accuracy accuracy{};
    spec::PhaseStreaming streaming;
    std::int64_t logits_chunk = 0;
    bool graphs = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, PhasePlan> phases;
  std::map<std::pair<spec::ModelId, spec::Batching>, CheckpointLadder> ladders;
};

/// Where weights are while their model computes, for models that allow it. A search tries the next
/// one if nothing fits. With offloaded weights it also tries larger groups of micro-batches, if
/// that is faster.
enum class WeightPlacement {
  kResident,
  kStreamed,           ///< layer-wise offload of blocks
  kStreamedTables,     ///< also offload the embedding and the head
  kStreamedInputs,     ///< also offload inputs of blocks between forward and backward
  kStreamedGradients,  ///< as kStreamed, and gradient shards are offloaded
  /// As kStreamed, kStreamedTables or kStreamedGradients, but blocks or shards are on disk.
  kStreamedDisk,
};
inline constexpr std::array kWeightPlacements = {
    WeightPlacement::kResident,          WeightPlacement::kStreamed,
    WeightPlacement::kStreamedTables,    WeightPlacement::kStreamedInputs,
    WeightPlacement::kStreamedGradients, WeightPlacement::kStreamedDisk};

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
  [[nodiscard]] Result<MemoryPlan> draft(const spec::ModelModes& modes,
                                         Accuracy accuracy = Accuracy::kExact);
  /// The minimum capacity for which solve() finds a plan of this draft. The largest number: none.
  [[nodiscard]] Bytes least_capacity(MemoryPlan draft) const;
  /// Fills the schedule, and checkpointing if the plan chooses it. Returns false if nothing fits
  /// the capacity with less than `limit` seconds.
  [[nodiscard]] Result<bool> solve(MemoryPlan& plan, double limit);
  /// A lower bound of the time of solve()'s plans: operations without recomputation.
  [[nodiscard]] Result<double> least_seconds(const MemoryPlan& draft);

  /// Why the job's generations cannot decode in graphs; empty: they can.
  [[nodiscard]] std::string_view no_graphs_reason() const;

  /// Every way to run the models that memory.optimizer_offload, memory.allow and fixed choices
  /// permit, for a weight placement; fewer phases first. Nothing is offloaded if everything is to
  /// stay, unless memory.optimizer_offload says so.
  [[nodiscard]] std::vector<spec::ModelModes> modes(WeightPlacement weights) const;
  /// As modes(), with groups of micro-batches per load of a block. It applies to offloaded and
  /// sharded models that support it and have no fixed choice. Groups are a whole mini-batch, half
  /// of it, a quarter, ...
  [[nodiscard]] std::vector<spec::ModelModes> grouped(const spec::ModelModes& modes) const;

 private:
  /// The largest number of micro-batches that the model's offloaded phases run per mini-batch, or
  /// in total.
  [[nodiscard]] std::int64_t groupable(const spec::Recipe& recipe, spec::ModelId model) const;
  /// Models whose weights can be offloaded: first those that fixed choices offload, then those with
  /// the largest blocks.
  [[nodiscard]] std::vector<spec::ModelId> streamable() const;
  [[nodiscard]] std::vector<spec::ModelModes> update_modes() const;
  [[nodiscard]] std::vector<spec::ModelModes> disk_modes() const;
  /// The data in host memory for a model with offloaded blocks.
  struct OnHost {
    bool tables = false, inputs = false, gradients = false;
    static OnHost of(const ModelChoice& choice) {
      return {choice.streams_tables, choice.inputs_on_host, choice.gradients_on_host};
    }
  };
  OnHost stream(spec::ModelModes& modes, spec::ModelId model, const spec::Recipe& recipe,
                const OnHost& wanted) const;
  /// Modes for a placement. They may conflict with models whose choice is fixed in more than the
  /// weights.
  [[nodiscard]] std::vector<spec::ModelModes> placed_modes(WeightPlacement weights) const;
  /// Predicts a phase of the job's recipe with these modes.
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
