// Chooses an option for every tag: the least transfer under which each phase fits.
//
// Branch and bound over tags, largest first; a node's bound is the dearest phase's fractional knapsack
// of what still has to leave. Exact: the bound never passes the true cost, and tests compare with
// enumeration.
//
// Threads   functions without state.   Cost   microseconds to milliseconds for a job's plan.
#pragma once

#include <optional>
#include <vector>

#include "plan/tag_options.h"

namespace neap::plan {

/// The options chosen, one a tag in the plan's order; nullopt when nothing fits `capacity` (zero:
/// unlimited) and the plan's host budget with less than `limit` bytes over the link.
[[nodiscard]] std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan,
                                                                     Bytes capacity, Bytes limit);

/// Whether there are such, at any cost.
[[nodiscard]] bool any_residency_fits(const MemoryPlan& plan, Bytes capacity);

}  // namespace neap::plan
