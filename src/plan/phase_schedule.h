// Chooses which tags stay on the device in which phase: the cheapest schedule that fits.
//
// Cost    bytes over the link in one step of the steady cycle; among equals, bytes mapped again.
//
// Threads   functions without state.
#pragma once

#include <limits>

#include "plan/memory_plan.h"

namespace neap::plan {

/// solve_residency, without words where nothing fits: false. With a `limit` of seconds of the whole
/// step, schedules whose bytes alone take longer are not looked for.
[[nodiscard]] Result<bool> solve_if_fits(MemoryPlan& plan, spec::Residency mode,
                                         double limit = std::numeric_limits<double>::infinity());

}  // namespace neap::plan
