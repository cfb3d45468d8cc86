// The summary at a run's end: held-out metrics before and after with sample texts, phases, and the
// four memory lines.
//
// Threads   one at a time.
#pragma once

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "plan/results/memory_plan.h"

namespace neap::rlhf {

[[nodiscard]] std::string summary_text(const std::filesystem::path& output,
                                       const plan::MemoryPlan& plan, Bytes measured_peak);

}  // namespace neap::rlhf
