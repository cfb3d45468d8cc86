// The minimum memory of a plan, and the error of a plan that does not fit.
//
// Threads   stateless functions.
#pragma once

#include <cstddef>

#include "plan/results/memory_plan.h"

namespace neap::plan {

/// A phase's temporaries and the tags that it needs.
[[nodiscard]] Bytes needed_by(const MemoryPlan& plan, std::size_t phase);
/// The maximum over phases; no schedule takes less.
[[nodiscard]] Bytes least_needed(const MemoryPlan& plan);
/// The minimum capacity for which a schedule exists, including temporaries and within the host
/// budget. The largest number if the host budget allows none.
[[nodiscard]] Bytes min_capacity(const MemoryPlan& plan);

/// The requirements of a plan that does not fit.
struct Shortage {
  Bytes capacity;   ///< the requested capacity
  Bytes least;      ///< minimum capacity; the largest number: none is enough
  Bytes with_host;  ///< minimum capacity with unlimited host memory
};
/// kDoesNotFit: why the plan does not fit, and what would help.
[[nodiscard]] Status refusal(const MemoryPlan& plan, const Shortage& shortage);

}  // namespace neap::plan
