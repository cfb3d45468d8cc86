// A user's program that answers lines on stdin with lines on stdout, or a function in a Python file behind such a program
// of Neap's (python_worker.py).
//
// `concurrency` copies run as long as the object. Each works on one line at a time. One that does not
// answer in time, ends, or writes something else is killed with its process group and started again.
// Copies see worker_environment() and have the limits of their configuration.
// Threads   one at a time.   Failure   Status, with the end of the program's stderr.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

/// Starts the first copy, in the setting's folder. Of Python it waits until the function is imported and fails with what
/// is wrong with it, kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<Transport>> start_program(
    const spec::RewardFunctionConfig& config, const Setting& setting);

}  // namespace neap::reward
