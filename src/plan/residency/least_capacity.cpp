#include "plan/residency/least_capacity.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "plan/residency/residency_search.h"
#include "plan/results/plan_words.h"

namespace neap::plan {

Bytes needed_by(const MemoryPlan& plan, std::size_t phase) {
  Bytes here = plan.phases[phase].transient;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[phase] == Need::kNeed) here += tag.bytes;
  }
  return here;
}

Bytes least_needed(const MemoryPlan& plan) {
  Bytes most;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) most = std::max(most, needed_by(plan, p));
  return most;
}

Bytes min_capacity(const MemoryPlan& plan) {
  // Without a host budget, every tag can be offloaded wherever it is not needed.
  Bytes low;
  Bytes high;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    Bytes all = plan.phases[p].transient;
    for (const TagPlan& tag : plan.tags) all += tag.bytes;
    low = std::max(low, needed_by(plan, p));
    high = std::max(high, all);
  }
  const TagChoices choices(plan);
  if (any_residency_fits(plan, choices, low)) return low;
  // Data that is always offloaded may already exceed the host budget.
  if (!any_residency_fits(plan, choices, high)) return Bytes(~0ull);
  // The host budget is a constraint, or nothing may move. Bisection works, because fitting is
  // monotone in the capacity.
  while (high - low > 1_B) {
    const Bytes middle = low + (high - low) / 2;
    (any_residency_fits(plan, choices, middle) ? high : low) = middle;
  }
  return high;
}

Status refusal(const MemoryPlan& plan, const Shortage& shortage) {
  const bool any_does = shortage.least != Bytes(~0ull);
  const bool lacks_host = shortage.with_host < shortage.least;
  std::string least = any_does ? "the minimum capacity is " + capacity_text(shortage.least)
                               : "no capacity is enough";
  if (lacks_host && shortage.with_host <= shortage.capacity) {
    return {ErrorCode::kDoesNotFit,
            format("The job does not fit under {} with a host budget of {}: what leaves the device "
                   "has no room there. With enough host memory it fits from {} on; with this "
                   "budget {}. The budget is memory.host_budget, --host or this machine's free "
                   "memory",
                   shortage.capacity, plan.host_budget, capacity_text(shortage.with_host), least)};
  }
  if (lacks_host)
    least += format(" with a host budget of {}, and {} with enough host memory", plan.host_budget,
                    capacity_text(shortage.with_host));
  // The phase that determines the minimum capacity, for the message.
  std::size_t worst = 0;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (needed_by(plan, p) > needed_by(plan, worst)) worst = p;
  }
  std::string parts, kept;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[worst] != Need::kNeed) continue;
    parts += format("{} {}, ", tag.name(), tag.bytes);
    if (!tag.kept.empty()) kept += format(". {} stays on the device: {}", tag.name(), tag.kept);
  }
  const Bytes alone = needed_by(plan, worst);
  const char* stays =
      !plan.may_move && alone < shortage.least
          ? ", and with it stays what cannot be offloaded without \"offload\" in memory.allow"
          : "";
  return {ErrorCode::kDoesNotFit,
          format("The job does not fit under {}: {}. Phase \"{}\" needs {}: {}temporary {}{}{}",
                 shortage.capacity, least, plan.phases[worst].name(), capacity_text(alone), parts,
                 plan.phases[worst].transient, stays, kept)};
}

}  // namespace neap::plan
