// Chooses which tags stay on the device in which phase: the cheapest schedule that fits.
//
// Threads   stateless functions.
// Cost      (of a schedule) bytes over the link in one step of the steady cycle; among equals,
//           bytes that are remapped.
#pragma once

#include <limits>

#include "plan/residency/residency_search.h"
#include "plan/results/memory_plan.h"

namespace neap::plan {

/// kInvalidArgument for a plan with too many phases, or with tags that contradict themselves. Others
/// have TagChoices.
[[nodiscard]] Status check_tags(const MemoryPlan& plan);
/// As solve_residency, but returns false without a message if nothing fits. Schedules whose bytes
/// alone would take a whole step over `limit` seconds are skipped. `choices` are those of the plan's
/// tags; null: they are made.
[[nodiscard]] Result<bool> solve_if_fits(MemoryPlan& plan, spec::Residency mode,
                                         double limit = std::numeric_limits<double>::infinity(),
                                         const TagChoices* choices = nullptr);

}  // namespace neap::plan
