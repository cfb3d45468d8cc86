// What a run says at its end: held-out data before and after with texts, phases, the four memory lines.
#pragma once

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "plan/memory_plan.h"

namespace neap::rlhf {

[[nodiscard]] std::string summary_text(const std::filesystem::path& output,
                                       const plan::MemoryPlan& plan, Bytes measured_peak);

}  // namespace neap::rlhf
