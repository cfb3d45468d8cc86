#include "plan/residency/step_walk.h"

namespace neap::plan {

std::vector<Visit> walk_of(const MemoryPlan& plan) {
  std::vector<Visit> walk;
  std::size_t loop = 0;
  for (std::size_t p = 0; p < plan.cycle(); ++p) {
    walk.push_back({p});
    if (loop == plan.loops.size() || plan.loops[loop].last != p) continue;
    const Loop& l = plan.loops[loop++];
    if (l.times < 2) continue;
    for (std::size_t q = l.first; q <= l.last; ++q) walk.push_back({q, true, l.times - 1});
  }
  return walk;
}

bool is_cut(const MemoryPlan& plan, std::size_t p) {
  const std::size_t next = (p + 1) % plan.cycle();
  return std::any_of(plan.loops.begin(), plan.loops.end(), [&](const Loop& l) {
    return l.times > 1 && (l.last == p || l.first == next);
  });
}

}  // namespace neap::plan
