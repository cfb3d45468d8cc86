// What ranks with other stages of some models choose alike of a model that they share.
//
// Each kind of rank (spec/rank_kinds.h) has a plan of its own. Where several have the same stage of a model, or all of it, these
// choose alike
//   of a model that trains    how it is updated and where its weights rest: what ranks add up, or slice, has the same sizes
//   of one that ranks of several kinds divide, or slice together
//                             where its weights rest, and how many micro-batches go through a block together, which they do
//                             not through stages: they meet in its passes
//   of one that they divide and train
//                             what blocks compute again, too: collectives are between these operations
// Of other models each kind chooses for itself. What memory.allow lets plans choose of the job's keys (sizes of
// micro-batches, types of optimizer states) is one choice of all kinds.
//
// Rounds  At first each kind plans for itself. Where they chose otherwise, all plan again with the choices of one of them, of
//         the one whose step takes longest first; if some kind does not fit with any of these, with the smaller of each
//         part of them, which takes no more of any device. The round is taken whose slowest kind is fastest.
//         Every rank of a run comes to the same end, because all know what each kind has planned.
//
// Threads   one at a time.   Failure   as plan_or_least.
// Cost      a plan of a kind for each round in which it has to choose otherwise than at first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/model_choice.h"
#include "spec/rank_kinds.h"

namespace neap::plan {

/// A stage of a model that several kinds have and of which they choose alike.
struct SharedStage {
  spec::ModelId model = spec::ModelId::kActor;
  std::vector<std::size_t> kinds;
  ChoiceParts parts{};
  [[nodiscard]] bool has(std::size_t kind) const {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  }
};
[[nodiscard]] std::vector<SharedStage> shared_stages(const spec::Job& job);
/// Whether all ranks with the same stage of the model choose alike.
[[nodiscard]] bool is_chosen_alike(const spec::Job& job, spec::ModelId model);

/// What a kind has planned in a round.
struct KindOutcome {
  double seconds = 0;  ///< of a step, without what it waits for other stages
  Bytes least{};       ///< zero: it has a plan; else the minimum capacity with which it does
  FixedChoices
      choices;  ///< where it has a plan: of its shared stages, in their order, and of the job
  [[nodiscard]] bool planned() const { return least.is_zero(); }
  /// For other ranks; of one of these models.
  [[nodiscard]] std::vector<double> to_numbers() const;
  [[nodiscard]] static KindOutcome from_numbers(const std::vector<double>& numbers);
};

class CommonChoices {
 public:
  explicit CommonChoices(const spec::Job& job);

  /// What a kind's next plan takes as it is.
  [[nodiscard]] FixedChoices fixed(std::size_t kind) const { return fixed(kind, rounds_.size()); }
  /// What a kind's plan chose of shared stages and of the job.
  [[nodiscard]] FixedChoices chosen(std::size_t kind, const MemoryPlan& plan) const;
  /// Of each kind, planned with fixed(). Whether there is another round.
  [[nodiscard]] bool take(std::vector<KindOutcome> outcomes);

  // After the last one:
  /// Whose plans are taken.
  [[nodiscard]] std::size_t round() const { return best_; }
  [[nodiscard]] FixedChoices fixed(std::size_t kind, std::size_t round) const;
  /// The kind that has no plan and needs most; nullopt: all have one.
  [[nodiscard]] std::optional<std::size_t> refused() const;
  /// What that one needs.
  [[nodiscard]] Bytes least() const;

 private:
  using Choices = FixedChoices;  // models: one a shared stage
  [[nodiscard]] Choices of_kinds(const std::vector<KindOutcome>& outcomes, std::size_t place) const;
  void add_trials();
  [[nodiscard]] bool all_planned(std::size_t round) const;
  [[nodiscard]] double seconds(std::size_t round) const;
  // Of rounds in which some kind has no plan: in which the one that needs most needs least.
  [[nodiscard]] std::size_t nearest() const;

  static constexpr std::size_t kMostTrials = 4;  // with choices of kinds
  std::vector<SharedStage> stages_;
  std::vector<std::vector<KindOutcome>> rounds_;
  std::vector<Choices> trials_{Choices{}};  // of each round; the first has none
  std::size_t kinds_trials_ = 0;  // of them with choices of kinds; behind these the smallest
  std::size_t best_ = 0;          // zero: no later round has plans of all kinds
};

/// The plans of a kind of rank, one a round. Failures say which kind it is.
class KindPlans {
 public:
  /// `job` outlives them. `target.rank` is one of the kind's.
  KindPlans(const spec::Job& job, Target target);
  /// The next round's.
  [[nodiscard]] Result<KindOutcome> plan(const CommonChoices& common);
  /// Of the round that is taken, as plan_or_least makes it: it fits, or misses the capacity where everything is to stay.
  [[nodiscard]] Result<MemoryPlan> take(const CommonChoices& common);
  /// Where it has none there: why, and what would help.
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
