// Which settings lower a job's memory, and by how much: each effect is a plan made with the setting
// changed, not a formula.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/model_choice.h"

namespace neap::plan {

struct Suggestion {
  bool keeps_training = true;  ///< the result is the same but for rounding
  std::vector<spec::JobChange> changes;
  std::string_view effect;  ///< what it costs, for people
  Bytes min_capacity;       ///< with it
};
/// Single changes that lower the minimum capacity: first those that make the job fit `target.capacity`,
/// of them first those that keep the training, and the ones that lower it most.
[[nodiscard]] std::vector<Suggestion> find_knobs(const spec::Job& job, const Target& target);
/// The first of them, a line each below a headline; empty: nothing lowers it.
[[nodiscard]] std::string knobs_text(const spec::Job& job, const Target& target);

/// Up to three plans that fit `target.capacity`, fastest first: each takes at least 10 % less memory
/// than the one before, or the least there is. Their `changes` make the job fit; those that keep
/// the training are looked for first, then adapters and shorter responses. kDoesNotFit when nothing
/// helps.
/// With a limit those that need more host memory come behind, but where the job has a budget of its own.
struct HostLimit {
  Bytes bytes{};  ///< zero: none
  /// Adapters and shorter responses are looked for before a plan that needs more.
  bool asked = false;
};
[[nodiscard]] Result<std::vector<MemoryPlan>> find_fit(const spec::Job& job, const Target& target,
                                                       HostLimit host = {});
/// What the changes of a plan cost, a line each.
[[nodiscard]] std::vector<std::string_view> effects_of(const MemoryPlan& plan);

/// Alternatives to a plan: what more memory would buy, and what less would cost.
struct Outlook {
  std::optional<MemoryPlan> faster, smaller;
  Bytes least_capacity;
  /// Sentences; nothing where the plan does not fit. `context`: what a card shows in addition.
  [[nodiscard]] std::string to_text(const MemoryPlan& plan, Bytes context = {}) const;
  [[nodiscard]] Json to_json() const;
};
/// The plan of a job and its alternatives.
struct PlanWithOutlook {
  MemoryPlan plan;
  Outlook outlook;
};
[[nodiscard]] Result<PlanWithOutlook> make_plan_with_outlook(const spec::Job& job,
                                                             const Target& target);

/// As make_plan, with choices that the plan takes as they are: of models that ranks with other plans share
/// (common_choices.h).
[[nodiscard]] Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target,
                                           const FixedChoices& fixed);
/// The same without words where none fits, and without what only a run asks.
struct PlanOrLeast {
  std::optional<MemoryPlan> plan{};
  Bytes least{};  ///< else the minimum capacity with which one fits; the largest number: none does
};
[[nodiscard]] Result<PlanOrLeast> plan_or_least(const spec::Job& job, const Target& target,
                                                const FixedChoices& fixed);
/// What only a run asks of a plan, which takes as long as two predictions: PhasePlan::keeps_pool.
[[nodiscard]] Status find_kept_pool(const spec::Job& configured, const Target& target,
                                    MemoryPlan& plan);

}  // namespace neap::plan
