// Which phases begin with the pages of the pool of the phase before. Mapping and freeing the pages of
// libtorch's pool takes the driver about 5 ms per GiB.
//
// Threads   stateless functions.
#pragma once

#include "plan/results/memory_plan.h"

namespace neap::plan {

/// Writes PhasePlan::pool_for: pages stay between two phases if no tag moves between them and the
/// second one then takes no more memory than with an empty pool. Only a run needs it. It predicts
/// all phases twice, and twice more for each pair that would take more.
[[nodiscard]] Status keep_pools(const spec::Job& configured, const Target& target,
                                MemoryPlan& plan);

}  // namespace neap::plan
