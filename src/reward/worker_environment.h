// The environment of a reward program.
//
// Threads   any, as long as none changes the environment.
//
// Failure   kInvalidArgument, naming the variable.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace neap::reward {

/// NAME=VALUE of the variables that programs need to start and to find their libraries and devices.
/// Others are excluded, because they may be secrets. `more` adds NAME (which must be set), PREFIX*
/// (all that are set; "*": all) and NAME=VALUE.
[[nodiscard]] Result<std::vector<std::string>> worker_environment(
    const std::vector<std::string>& more);

}  // namespace neap::reward
