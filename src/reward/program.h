// A user's program that answers lines on stdin with lines on stdout.
//
// `concurrency` copies run as long as the object. Each works on one line at a time. One that does not
// answer in time, ends, or writes something else is killed with its process group and started again.
// Threads   one at a time.   Failure   Status, with the end of the program's stderr.
#pragma once

#include <filesystem>
#include <memory>

#include "reward/request_queue.h"
#include "spec/reward_config.h"

namespace neap::reward {

/// Starts the first copy, in `folder`.
[[nodiscard]] Result<std::unique_ptr<Transport>> start_program(
    const spec::RewardFunctionConfig& config, const std::filesystem::path& folder);

}  // namespace neap::reward
