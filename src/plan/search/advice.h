// Suggests settings that lower a job's memory, and by how much. Each effect comes from a plan with
// the changed setting, not from a formula.
//
// Threads   stateless functions.
// Failure   Status of the planner.
// Cost      one plan per candidate.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/results/memory_plan.h"
#include "plan/search/model_choice.h"

namespace neap::plan {

struct Suggestion {
  bool keeps_training = true;  ///< the result is the same except for rounding
  std::vector<spec::JobChange> changes;
  std::string_view effect;  ///< what the change costs, in words
  Bytes min_capacity;       ///< minimum capacity with the change
};
/// Single changes that lower the minimum capacity. Changes that make the job fit `target.capacity`
/// come first, and among them those that keep the training. Then they are sorted by how much they
/// lower it.
[[nodiscard]] std::vector<Suggestion> find_knobs(const spec::Job& job, const Target& target);
/// The first suggestions, one per line below a headline; empty if nothing helps.
[[nodiscard]] std::string knobs_text(const spec::Job& job, const Target& target);

/// Up to three plans that fit `target.capacity`, fastest first. Each takes at least 10 % less
/// memory than the one before, or is the smallest plan. Their `changes` make the job fit. Changes
/// that keep the training are tried first, then adapters and shorter responses. kDoesNotFit if
/// nothing helps. With a host limit, plans that exceed it come last, unless the job sets a host
/// budget.
struct HostLimit {
  Bytes bytes{};  ///< zero: no limit
  /// Try adapters and shorter responses before plans that exceed the limit.
  bool asked = false;
};
[[nodiscard]] Result<std::vector<MemoryPlan>> find_fit(const spec::Job& job, const Target& target,
                                                       HostLimit host = {});
/// The cost of a plan's changes, one entry per change.
[[nodiscard]] std::vector<std::string_view> effects_of(const MemoryPlan& plan);

/// Alternatives to a plan: a faster one with more memory, and a smaller one.
struct Outlook {
  std::optional<MemoryPlan> faster, smaller;
  Bytes least_capacity;
  /// Sentences; empty if the plan does not fit. `context` is memory that a card shows in addition.
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

/// As make_plan, with choices that the plan must keep, because ranks with other plans share the
/// models (common_choices.h).
[[nodiscard]] Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target,
                                           const FixedChoices& fixed);
/// As make_plan, but without a message if nothing fits, and without data that only a run needs.
struct PlanOrLeast {
  std::optional<MemoryPlan> plan{};
  Bytes least{};  ///< minimum capacity if nothing fits; the largest number: none is enough
};
[[nodiscard]] Result<PlanOrLeast> plan_or_least(const spec::Job& job, const Target& target,
                                                const FixedChoices& fixed);
}  // namespace neap::plan
