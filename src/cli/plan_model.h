// `neap plan FOLDER`: memory for each method of training a model, full and with LoRA.
//
// Threads   one.
//
// Failure   kInvalidArgument for a folder without a readable config.json, and for keys that a job
//           rejects.
//
// Cost      two plan searches per method: a few seconds in total.
#pragma once

#include <string>
#include <vector>

#include "plan/rates/planned_device.h"

namespace neap::cli {

/// Whether the path is a model's folder or its config.json, not a job.
[[nodiscard]] bool is_model(const std::string& path);

/// Prints a line per method (SFT, DPO, GRPO, PPO), full and with LoRA. `overrides` apply to all
/// jobs.
[[nodiscard]] Status plan_model(const std::string& path, const std::vector<std::string>& overrides,
                                const plan::DeviceQuestion& asked, bool json);

}  // namespace neap::cli
