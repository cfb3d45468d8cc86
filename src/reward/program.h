// A user's program that reads lines from stdin and answers with lines on stdout. A function in a
// Python file is run by such a program of Neap's (python_worker.py).
//
// `concurrency` copies run as long as the object exists. Each handles one line at a time. A copy
// that does not answer in time, ends, or writes something else is killed with its process group and
// started again. Copies get worker_environment() and the limits of their configuration.
//
// Threads   one at a time.
//
// Failure   Status, with the end of the program's stderr.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

/// Starts the first copy in the setting's folder. For Python it waits until the function is
/// imported; an error there is kInvalidArgument with its reason.
[[nodiscard]] Result<std::unique_ptr<Transport>> start_program(
    const spec::RewardFunctionConfig& config, const Setting& setting);

}  // namespace neap::reward
