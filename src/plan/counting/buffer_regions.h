// The regions of prefetch buffers: for layers that are loaded or gathered, and for layer inputs.
//
// Threads   a stateless function.
#pragma once

#include <vector>

#include "plan/results/memory_plan.h"
#include "plan/results/model_roles.h"

namespace neap::plan {

/// `hosted`: the data that pass through them. Regions have at least `enough` bytes.
[[nodiscard]] std::vector<RegionPlan> buffer_regions(const ModelRole& role,
                                                     const spec::ModelStorage& storage,
                                                     const HostedPlan& hosted, spec::Dtype dtype,
                                                     Bytes enough);

}  // namespace neap::plan
