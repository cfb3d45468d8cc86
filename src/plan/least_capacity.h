// How little memory a plan can do with, and why one that does not fit is refused.
//
// Threads   functions without state.
#pragma once

#include <cstddef>

#include "plan/memory_plan.h"

namespace neap::plan {

/// Of a phase: its transients and the tags that it needs.
[[nodiscard]] Bytes needed_by(const MemoryPlan& plan, std::size_t phase);
/// Of the phase that needs most: no schedule takes less.
[[nodiscard]] Bytes least_needed(const MemoryPlan& plan);
/// The minimum capacity under which a schedule exists (host budget included); transient included. The
/// largest number where the host budget forbids every schedule.
[[nodiscard]] Bytes min_capacity(const MemoryPlan& plan);

/// What a plan that does not fit would need.
struct Shortage {
  Bytes capacity;   ///< that was asked for
  Bytes least;      ///< that would do; the largest number: none does
  Bytes with_host;  ///< the same with as much host memory as it wants
};
/// Why the plan does not fit, and what would do: kDoesNotFit.
[[nodiscard]] Status refusal(const MemoryPlan& plan, const Shortage& shortage);

}  // namespace neap::plan
