#include "report/typical_step.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

namespace neap::report {
namespace {

// Planned phases of every step that the trace has. Both are null if it has none.
struct StepEnds {
  const PlanSummary::Phase *first = nullptr, *last = nullptr;
};

StepEnds find_ends(std::span<const PhaseSpan> phases, const PlanSummary& plan) {
  std::set<std::string_view> ran;
  for (const PhaseSpan& phase : phases)
    if (phase.depth == 0) ran.insert(phase.name);
  StepEnds ends;
  for (const PlanSummary::Phase& planned : plan.phases) {
    if (planned.times < 1 || planned.share < 1 || !ran.contains(planned.name)) continue;
    if (ends.first == nullptr) ends.first = &planned;
    ends.last = &planned;
  }
  return ends;
}

}  // namespace

std::optional<StepSpan> typical_step(std::span<const PhaseSpan> phases,
                                     const std::optional<PlanSummary>& plan) {
  constexpr std::size_t kFewest = 4;
  constexpr double kMostRounds = 1e6;
  if (!plan) return std::nullopt;
  const StepEnds ends = find_ends(phases, *plan);
  if (ends.first == nullptr) return std::nullopt;
  std::vector<std::uint64_t> begins;
  bool ended = true;
  for (const PhaseSpan& phase : phases) {
    if (phase.depth > 0) continue;
    if (ended && phase.name == ends.first->name) {
      begins.push_back(phase.begin_ns);
      ended = false;
    }
    if (phase.name == ends.last->name) ended = true;
  }
  // If the first phase and the one behind it are a whole step, the step is rounds of them, one per
  // mini-batch. Other steps run the first phase several times before the next one.
  const bool is_step = ends.last - ends.first <= 1;
  const auto rounds =
      is_step ? static_cast<std::size_t>(std::min(ends.first->times, kMostRounds)) : 1;
  std::vector<StepSpan> steps;
  for (std::size_t i = 0; i + rounds < begins.size(); i += rounds)
    steps.push_back({begins[i], begins[i + rounds]});
  if (steps.size() < kFewest) return std::nullopt;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(), [](const StepSpan& a, const StepSpan& b) {
    return a.end_ns - a.begin_ns < b.end_ns - b.begin_ns;
  });
  return *middle;
}

}  // namespace neap::report
