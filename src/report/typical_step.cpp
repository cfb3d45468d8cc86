#include "report/typical_step.h"

#include <algorithm>
#include <vector>

namespace neap::report {

std::optional<StepSpan> typical_step(std::span<const PhaseSpan> phases,
                                     const std::optional<PlanSummary>& plan) {
  constexpr std::size_t kFewest = 4;
  if (!plan) return std::nullopt;
  for (const PlanSummary::Phase& planned : plan->phases) {
    std::vector<StepSpan> steps;
    std::optional<std::uint64_t> last;
    for (const PhaseSpan& phase : phases) {
      if (phase.depth > 0 || phase.name != planned.name) continue;
      if (last) steps.push_back({*last, phase.begin_ns});
      last = phase.begin_ns;
    }
    if (!last) continue;
    if (steps.size() < kFewest) return std::nullopt;
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const StepSpan& a, const StepSpan& b) {
      return a.end_ns - a.begin_ns < b.end_ns - b.begin_ns;
    });
    return *middle;
  }
  return std::nullopt;
}

}  // namespace neap::report
