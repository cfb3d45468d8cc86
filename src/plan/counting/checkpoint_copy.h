// Host memory for a copy of a checkpoint, so that training need not wait until it is written.
//
// Model     The trained models and their optimizer states, on the device, in host memory or on
//           disk.
// Threads   a stateless function.
// Failure   none.
// Cost      negligible.
#pragma once

#include <vector>

#include "plan/results/memory_plan.h"
#include "spec/recipe/recipe.h"

namespace neap::plan {

/// An upper bound. Zero if the run saves only at its end, has several ranks, or makes no copies.
[[nodiscard]] Bytes checkpoint_copy(const spec::Job& job, const spec::Recipe& recipe,
                                    const std::vector<TagPlan>& tags);

}  // namespace neap::plan
