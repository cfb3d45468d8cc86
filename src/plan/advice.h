// Which settings lower a job's memory, and by how much: each effect is a plan made with the setting
// changed, not a formula.
#pragma once

#include <string>
#include <vector>

#include "plan/memory_plan.h"

namespace neap::plan {

struct Suggestion {
  std::vector<std::string> overrides;  ///< "critic.ppo_micro_batch_size_per_gpu=4"
  std::string effect;                  ///< what it costs, for people
  Bytes min_capacity;                  ///< with it
};
/// Single changes that lower the least capacity, best first.
[[nodiscard]] std::vector<Suggestion> find_knobs(const spec::Job& job, const Target& target);

struct Fit {
  std::vector<std::string> overrides;  ///< empty: fits as it is
  std::vector<std::string> effects;
  MemoryPlan plan;
};
/// The combination with the smallest penalty under which the job fits `target.capacity`: first those
/// that cost time only, then those that change the training. kDoesNotFit when none does.
[[nodiscard]] Result<Fit> find_fit(const spec::Job& job, const Target& target);

}  // namespace neap::plan
