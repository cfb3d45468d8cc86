// GPUs that plans can be made for where there is none: what their vendor states, and what of it kernels reach.
//
// The shares that kernels reach were measured once, on an H200, and NCCL's on two H100s; they are the same for every GPU.
//
// Threads   functions without state.   Failure   kInvalidArgument, with the names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/device_choice.h"

namespace neap::plan {

[[nodiscard]] std::vector<std::string> gpu_names();
/// A device of that name as a plan's target; `memory`: a ceiling, or zero for all that it has.
[[nodiscard]] Result<DeviceChoice> gpu_by_name(std::string_view name, Bytes memory);

}  // namespace neap::plan
