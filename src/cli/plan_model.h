// `neap plan FOLDER`: what each way to train a model would take, full and as LoRA.
//
// Threads   one.   Failure   kInvalidArgument for a folder without a readable config.json, and for keys that a job refuses.
// Cost      two searches of a plan for each: a few seconds.
#pragma once

#include <string>
#include <vector>

#include "plan/planned_device.h"

namespace neap::cli {

/// The path is a model's folder or its config.json, not a job.
[[nodiscard]] bool is_model(const std::string& path);

/// Prints a line for each of SFT, DPO, GRPO and PPO, full and LoRA. `overrides` change all jobs.
[[nodiscard]] Status plan_model(const std::string& path, const std::vector<std::string>& overrides,
                                const plan::DeviceQuestion& asked, bool json);

}  // namespace neap::cli
