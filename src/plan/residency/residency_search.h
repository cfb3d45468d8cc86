// Chooses an option for every tag, with the least transfer such that each phase fits.
//
// It is a branch and bound over tags, largest first. A node's bound is the most expensive phase's
// fractional knapsack of bytes that must still be offloaded. The result is exact, because the bound
// never exceeds the true cost; tests compare it with enumeration.
//
// Threads   stateless functions.
// Cost      microseconds to milliseconds for a job's plan.
#pragma once

#include <optional>
#include <vector>

#include "plan/residency/tag_options.h"

namespace neap::plan {

/// The chosen options, one per tag in the plan's order. nullopt if nothing fits `capacity` (zero:
/// unlimited) and the plan's host budget with less than `limit` bytes over the link.
[[nodiscard]] std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan,
                                                                     Bytes capacity, Bytes limit);

/// Whether any choice fits, at any cost.
[[nodiscard]] bool any_residency_fits(const MemoryPlan& plan, Bytes capacity);

}  // namespace neap::plan
