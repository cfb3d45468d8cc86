#include "plan/search/checkpoint_search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "plan/residency/least_capacity.h"
#include "plan/residency/phase_schedule.h"

namespace neap::plan {
namespace {

PhasePlan between(const PhasePlan& a, const PhasePlan& b, double share) {
  const auto bytes = [&](Bytes x, Bytes y) {
    return Bytes(static_cast<std::uint64_t>(static_cast<double>(x.count()) * (1 - share) +
                                            static_cast<double>(y.count()) * share));
  };
  PhasePlan out = a;
  out.transient = bytes(a.transient, b.transient);
  out.transient_allocated = bytes(a.transient_allocated, b.transient_allocated);
  out.seconds = a.seconds * (1 - share) + b.seconds * share;
  return out;
}

// A lower bound of a step's time with these operations and bytes. Loads of prefetch buffers are
// part of the operations.
double least_seconds(const MemoryPlan& plan, double operations) {
  const Bytes moved = plan.moved_per_step - plan.streamed_per_step();
  const double moves = static_cast<double>(moved.count()) /
                       std::max({plan.link.to_host, plan.link.to_device, plan.link.both});
  return plan.overlap ? std::max(operations, moves) : operations + moves;
}

class CheckpointSearch {
 public:
  CheckpointSearch(MemoryPlan& plan, const std::vector<CheckpointChoice>& choices,
                   spec::Residency residency, double limit)
      : plan_(plan),
        choices_(choices),
        residency_(residency),
        tags_(plan),
        rungs_(choices.size()),
        limit_(limit) {}

  Result<bool> run() {
    // If everything can be kept without moves, there is nothing to search.
    NEAP_TRY_ASSIGN(const bool all, keeps_all());
    if (all) return finish();
    const double fewest_operations = plan_.operation_seconds();
    best_ = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < choices_.size(); ++c)
      NEAP_TRY(set(c, choices_[c].ladder->last(), Accuracy::kExact));
    if (is_too_large()) return false;
    NEAP_TRY_ASSIGN(const std::optional<double> least, cost());
    keep_best(least);
    // The rung with the least memory needs the fewest moves.
    if (least && least_seconds(plan_, fewest_operations) >= limit_) return false;
    // The choice for one model changes the cost for the next, so several models take two rounds.
    for (std::size_t round = 0; round < (choices_.size() > 1 ? 2 : 1); ++round) {
      for (std::size_t c = 0; c < choices_.size(); ++c) {
        NEAP_TRY(choose_step(c));
        if (found_) NEAP_TRY(refine(c));
      }
    }
    return finish();
  }

 private:
  Result<bool> keeps_all() {
    for (std::size_t c = 0; c < choices_.size(); ++c) NEAP_TRY(set(c, 0, Accuracy::kQuick));
    NEAP_TRY_ASSIGN(const std::optional<double> seconds, cost());
    keep_best(seconds);
    return seconds && plan_.moved_per_step.is_zero();
  }
  void put(std::size_t c, const PhasePlan& predicted) {
    PhasePlan& phase = plan_.phases[choices_[c].phase];
    const auto times = phase.times;
    const double share = phase.share;
    phase = predicted;
    phase.times = times;
    phase.share = share;
  }
  Status set(std::size_t c, std::size_t rung, Accuracy accuracy) {
    NEAP_TRY_ASSIGN(const PhasePlan predicted, choices_[c].predict(rung, accuracy));
    put(c, predicted);
    rungs_[c] = rung;
    return {};
  }

  // Seconds of the whole step with the current rungs. nullopt if they do not fit, or if operations
  // alone take as long as the best.
  Result<std::optional<double>> cost() {
    if (plan_.operation_seconds() >= best_) return std::optional<double>();
    NEAP_TRY_ASSIGN(const bool fits, solve_if_fits(plan_, residency_, best_, &tags_));
    if (!fits || !plan_.fits()) return std::optional<double>();
    return std::optional<double>(plan_.seconds());
  }
  [[nodiscard]] bool on_last_rungs() const {
    for (std::size_t c = 0; c < choices_.size(); ++c)
      if (rungs_[c] != choices_[c].ladder->last()) return false;
    return true;
  }
  bool keep_best(const std::optional<double>& seconds) {
    if (!seconds || *seconds >= best_) return false;
    best_ = *seconds;
    found_ = rungs_;
    return true;
  }

  // Some phase alone exceeds the capacity, so no moves can help.
  [[nodiscard]] bool is_too_large() const {
    return residency_ == spec::Residency::kAuto && !plan_.capacity.is_zero() &&
           least_needed(plan_) > plan_.capacity;
  }
  // For model `c`, the first rung with equal blocks that may fit; otherwise the last one.
  Result<std::size_t> first_that_fits(std::size_t c) {
    const std::size_t step = choices_[c].ladder->step();
    std::size_t low = 0;
    std::size_t high = choices_[c].ladder->last() / step;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      NEAP_TRY(set(c, middle * step, Accuracy::kQuick));
      if (is_too_large()) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return high * step;
  }

  // Chooses the fastest rung of model `c` with equal blocks. Time of operations grows with the
  // rung.
  Status choose_step(std::size_t c) {
    std::size_t chosen = rungs_[c];
    const CheckpointLadder& ladder = *choices_[c].ladder;
    NEAP_TRY_ASSIGN(const std::size_t first, first_that_fits(c));
    for (std::size_t rung = first; rung <= ladder.last(); rung += ladder.step()) {
      NEAP_TRY(set(c, rung, Accuracy::kQuick));
      if (plan_.operation_seconds() >= best_) break;
      NEAP_TRY_ASSIGN(const std::optional<double> here, cost());
      if (keep_best(here)) chosen = rung;
    }
    return set(c, chosen, Accuracy::kQuick);
  }

  // Continues from there while it gets faster: fewer blocks recompute the last tensors.
  Status refine(std::size_t c) {
    const std::size_t before = rungs_[c];
    NEAP_TRY_ASSIGN(const std::size_t rung, lowest_below(c));
    NEAP_TRY(set(c, rung, Accuracy::kQuick));
    NEAP_TRY_ASSIGN(const std::optional<double> here, cost());
    return keep_best(here) ? Status() : set(c, before, Accuracy::kQuick);
  }
  Result<std::size_t> lowest_below(std::size_t c) {
    const std::size_t step = choices_[c].ladder->step();
    const std::size_t from = rungs_[c];
    if (from == 0) return from;
    const std::size_t bottom = (from - 1) / step * step;
    NEAP_TRY_ASSIGN(const PhasePlan below, choices_[c].predict(bottom, Accuracy::kQuick));
    NEAP_TRY_ASSIGN(const PhasePlan above, choices_[c].predict(bottom + step, Accuracy::kQuick));
    std::size_t low = bottom;
    std::size_t high = from;
    double least = best_;
    while (high - low > 1) {
      rungs_[c] = low + (high - low) / 2;
      put(c, between(below, above,
                     static_cast<double>(rungs_[c] - bottom) / static_cast<double>(step)));
      NEAP_TRY_ASSIGN(const std::optional<double> here, cost());
      const bool better = here && *here < least;
      if (better) least = *here;
      (better ? high : low) = rungs_[c];
    }
    return high;
  }

  // Builds the plan with the best rungs, or the next ones that fit with exact predictions. Returns
  // false if there are none.
  Result<bool> finish() {
    if (!found_ || best_ >= limit_) return false;
    const std::vector<std::size_t> best = *found_;
    best_ = std::numeric_limits<double>::infinity();
    for (std::size_t more = 0;; more = 2 * more + 1) {
      for (std::size_t c = 0; c < choices_.size(); ++c)
        NEAP_TRY(set(c, std::min(best[c] + more, choices_[c].ladder->last()), Accuracy::kExact));
      NEAP_TRY_ASSIGN(const std::optional<double> seconds, cost());
      if (!seconds && !on_last_rungs()) continue;
      for (std::size_t c = 0; c < choices_.size(); ++c)
        plan_.activations[choices_[c].activation].checkpointing = choices_[c].ladder->at(rungs_[c]);
      return seconds && *seconds < limit_;
    }
  }

  MemoryPlan& plan_;
  const std::vector<CheckpointChoice>& choices_;
  spec::Residency residency_;
  TagChoices tags_;
  std::vector<std::size_t> rungs_;
  double limit_;
  double best_ = std::numeric_limits<double>::infinity();
  std::optional<std::vector<std::size_t>> found_;  // the rungs that take `best_` seconds
};

}  // namespace

Result<bool> solve_checkpointing(MemoryPlan& plan, const std::vector<CheckpointChoice>& choices,
                                 spec::Residency residency, double limit) {
  NEAP_TRY(check_tags(plan));
  return CheckpointSearch(plan, choices, residency, limit).run();
}

}  // namespace neap::plan
