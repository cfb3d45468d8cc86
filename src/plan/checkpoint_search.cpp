#include "plan/checkpoint_search.h"

#include <algorithm>
#include <optional>

namespace neap::plan {
namespace {

class CheckpointSearch {
 public:
  CheckpointSearch(MemoryPlan& plan, const std::vector<CheckpointChoice>& choices,
                   const std::string& residency)
      : plan_(plan), choices_(choices), residency_(residency) {}

  Status run() {
    // Where everything can be kept without a move there is nothing to search.
    rungs_.assign(choices_.size(), 0);
    NEAP_TRY_ASSIGN(const std::optional<double> all, cost());
    if (all && plan_.moved_per_step.is_zero()) return {};
    for (std::size_t c = 0; c < choices_.size(); ++c) rungs_[c] = choices_[c].ladder->last();
    NEAP_TRY_ASSIGN(const std::optional<double> least, cost());
    if (!least) return refusal_;
    best_ = *least;
    // The choice for one model changes what the next one's costs, so twice where there are several.
    for (std::size_t round = 0; round < (choices_.size() > 1 ? 2 : 1); ++round) {
      for (std::size_t c = 0; c < choices_.size(); ++c) {
        NEAP_TRY(choose_step(c));
        NEAP_TRY(refine(c));
      }
    }
    return cost().status();
  }

 private:
  // Of the whole step with the present rungs; nothing where they do not fit.
  Result<std::optional<double>> cost() {
    for (std::size_t c = 0; c < choices_.size(); ++c) {
      const CheckpointChoice& choice = choices_[c];
      NEAP_TRY_ASSIGN(const PhasePlan predicted, choice.predict(rungs_[c]));
      PhasePlan& phase = plan_.phases[choice.phase];
      phase.transient = predicted.transient;
      phase.transient_allocated = predicted.transient_allocated;
      phase.seconds = predicted.seconds;
      plan_.activations[choice.activation].checkpointing = choice.ladder->at(rungs_[c]);
    }
    refusal_ = solve_residency(plan_, residency_);
    if (refusal_.code() == ErrorCode::kDoesNotFit) return std::optional<double>();
    NEAP_TRY(refusal_);
    // With every tag resident a plan may be over the capacity; the last rung is then the best there is.
    if (!plan_.fits() && !on_last_rungs()) return std::optional<double>();
    return std::optional<double>(plan_.seconds());
  }
  [[nodiscard]] bool on_last_rungs() const {
    for (std::size_t c = 0; c < choices_.size(); ++c)
      if (rungs_[c] != choices_[c].ladder->last()) return false;
    return true;
  }

  // The cheapest rung of model `c` on which all blocks are equal.
  Status choose_step(std::size_t c) {
    std::size_t chosen = rungs_[c];
    const CheckpointLadder& ladder = *choices_[c].ladder;
    for (std::size_t rung = 0; rung <= ladder.last(); rung += ladder.step()) {
      rungs_[c] = rung;
      NEAP_TRY_ASSIGN(const std::optional<double> here, cost());
      if (!here || *here >= best_) continue;
      best_ = *here;
      chosen = rung;
    }
    rungs_[c] = chosen;
    return {};
  }

  // From there down, as long as it gets cheaper: fewer blocks compute the last tensors again.
  Status refine(std::size_t c) {
    const std::size_t step = choices_[c].ladder->step();
    std::size_t high = rungs_[c];
    std::size_t low = high - std::min(high, step);
    while (high - low > 1) {
      rungs_[c] = low + (high - low) / 2;
      NEAP_TRY_ASSIGN(const std::optional<double> here, cost());
      if (here && *here <= best_) {
        best_ = *here;
        high = rungs_[c];
      } else {
        low = rungs_[c];
      }
    }
    rungs_[c] = high;
    return {};
  }

  MemoryPlan& plan_;
  const std::vector<CheckpointChoice>& choices_;
  const std::string& residency_;
  std::vector<std::size_t> rungs_;
  double best_ = 0;
  Status refusal_;
};

}  // namespace

Status solve_checkpointing(MemoryPlan& plan, const std::vector<CheckpointChoice>& choices,
                           const std::string& residency) {
  return CheckpointSearch(plan, choices, residency).run();
}

}  // namespace neap::plan
