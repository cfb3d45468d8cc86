// A server that scores batches of responses: POST with a JSON body, answered in JSON.
//
// Libcurl is loaded when the first one is made, so that a program without such a function needs none.
// Threads   one at a time.
// Failure   Status: libcurl is missing, the server cannot be reached, is too slow, or answers with
//           another status than 200.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "spec/reward_config.h"

namespace neap::reward {

/// `$NAME` in a header is the environment variable NAME, which has to be set.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_http(
    const spec::RewardFunctionConfig& config);

}  // namespace neap::reward
