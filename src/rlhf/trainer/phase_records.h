// Measured phases in the format of phases.jsonl, compared with the plan.
//
// Threads   values.
#pragma once

#include <cstdint>

#include "bridge/runtime.h"
#include "plan/results/memory_plan.h"
#include "report/run_folder.h"

namespace neap::rlhf {

[[nodiscard]] report::PhaseRecord record_of(const bridge::PhaseMeasurement& measured,
                                            const plan::MemoryPlan& plan, std::int64_t step);

}  // namespace neap::rlhf
