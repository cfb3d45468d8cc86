// A step as the sequence of its phases. Internal to plan/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/results/memory_plan.h"

namespace neap::plan {

/// A phase of the walk. A loop's second round represents all later ones, in which every tag is in
/// the same state.
struct Visit {
  std::size_t phase = 0;
  bool again = false;
  std::int64_t times = 1;
};
[[nodiscard]] std::vector<Visit> walk_of(const MemoryPlan& plan);

/// Whether a loop begins or ends between phase p and the next.
[[nodiscard]] bool is_cut(const MemoryPlan& plan, std::size_t p);

}  // namespace neap::plan
