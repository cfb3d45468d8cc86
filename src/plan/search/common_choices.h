// Makes ranks agree on the settings of a model that they share, if they have different stages of
// other models.
//
// Each kind of rank (spec/ranks/rank_kinds.h) has its own plan. Kinds that have the same stage of a
// model, or all of it, agree on these settings:
// - for a trained model: optimizer offload and where weights are stored, because all-reduced or
//   sharded tensors must have the same sizes;
// - for a model whose passes run collectives among such ranks (tensor, context or ZeRO
//   parallelism): where weights are stored, and the number of micro-batches per load of a block;
// - if that model is also trained: what blocks recompute, because collectives run between these
//   operations.
//
// For other models each kind decides alone. The choices that memory.allow permits for the job's
// keys (micro-batch sizes, types of optimizer states) are the same for all kinds.
//
// Rounds    First, each kind plans alone. If settings differ, all kinds plan again with the
//           settings of one of them, starting with the slowest kind. If some kind never fits, a
//           last round uses the smaller option of each setting. The round with the fastest step
//           wins. Every rank knows the results of all kinds, so all come to the same decision.
// Threads   one at a time.
// Failure   as plan_or_least.
// Cost      a plan of a kind for each round in which it has to change settings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/results/memory_plan.h"
#include "plan/search/model_choice.h"
#include "spec/ranks/rank_kinds.h"

namespace neap::plan {

/// A stage of a model that several kinds have, on whose settings they agree.
struct SharedStage {
  spec::ModelId model = spec::ModelId::kActor;
  std::vector<std::size_t> kinds;
  ChoiceParts parts{};
  [[nodiscard]] bool has(std::size_t kind) const {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  }
};
[[nodiscard]] std::vector<SharedStage> shared_stages(const spec::Job& job);
/// Whether all ranks with the same stage of the model agree on its settings.
[[nodiscard]] bool is_chosen_alike(const spec::Job& job, spec::ModelId model);

/// The result of a kind's plan in a round.
struct KindOutcome {
  double seconds = 0;  ///< of a step, without waits for other stages
  Bytes least{};       ///< zero: it has a plan; else the minimum capacity for one
  /// If it has a plan: settings of its shared stages, in their order, and of the job.
  FixedChoices choices;
  [[nodiscard]] bool planned() const { return least.is_zero(); }
  /// Conversion to and from numbers that ranks exchange.
  [[nodiscard]] std::vector<double> to_numbers() const;
  [[nodiscard]] static KindOutcome from_numbers(const std::vector<double>& numbers);
};

class CommonChoices {
 public:
  explicit CommonChoices(const spec::Job& job);

  /// The settings that a kind's next plan must keep.
  [[nodiscard]] FixedChoices fixed(std::size_t kind) const { return fixed(kind, rounds_.size()); }
  /// The settings that a kind's plan chose for shared stages and the job.
  [[nodiscard]] FixedChoices chosen(std::size_t kind, const MemoryPlan& plan) const;
  /// Takes the outcome of each kind, planned with fixed(). Returns whether there is another round.
  [[nodiscard]] bool take(std::vector<KindOutcome> outcomes);

  // After the last round:
  /// The round whose plans are used.
  [[nodiscard]] std::size_t round() const { return best_; }
  [[nodiscard]] FixedChoices fixed(std::size_t kind, std::size_t round) const;
  /// The kind without a plan that needs the most memory; nullopt if all kinds have a plan.
  [[nodiscard]] std::optional<std::size_t> refused() const;
  /// The minimum capacity of that kind.
  [[nodiscard]] Bytes least() const;

 private:
  using Choices = FixedChoices;  // `models` has one entry per shared stage
  [[nodiscard]] Choices of_kinds(const std::vector<KindOutcome>& outcomes, std::size_t place) const;
  void add_trials();
  [[nodiscard]] bool all_planned(std::size_t round) const;
  [[nodiscard]] double seconds(std::size_t round) const;
  // Among rounds in which some kind has no plan: the one with the smallest minimum capacity.
  [[nodiscard]] std::size_t nearest() const;

  static constexpr std::size_t kMostTrials = 4;  // rounds with the settings of one kind
  std::vector<SharedStage> stages_;
  std::vector<std::vector<KindOutcome>> rounds_;
  std::vector<Choices> trials_{Choices{}};  // of each round; the first has none
  // Number of rounds with the settings of one kind; smaller ones follow.
  std::size_t kinds_trials_ = 0;
  std::size_t best_ = 0;  // zero: in no later round do all kinds have a plan
};

/// The plans of one kind of rank, one per round. Failures name the kind.
class KindPlans {
 public:
  /// `job` must outlive it. `target.rank` is a rank of the kind.
  KindPlans(const spec::Job& job, Target target);
  /// Makes the next round's plan.
  [[nodiscard]] Result<KindOutcome> plan(const CommonChoices& common);
  /// The plan of the chosen round, as plan_or_least makes it. It fits, or exceeds the capacity if
  /// nothing may be offloaded.
  [[nodiscard]] Result<MemoryPlan> take(const CommonChoices& common);
  /// Without a plan: the reason, and suggestions.
  [[nodiscard]] Status refusal(const CommonChoices& common) const;

 private:
  [[nodiscard]] Status in_kind(const Status& status) const;

  const spec::Job& job_;
  Target target_;
  std::vector<spec::RankKind> kinds_;
  std::size_t kind_;
  std::vector<std::optional<MemoryPlan>> rounds_;
};

}  // namespace neap::plan
