// A server that scores batches of responses: POST with a JSON body, answered in JSON.
//
// Libcurl is loaded when the first one is made, so that a program without such a function needs none.
// Threads   one at a time.
// Failure   Status: libcurl is missing, the server cannot be reached, is too slow, or answers with
//           a status that is not 2xx. 408, 429 and 5xx are asked again after a pause, other statuses
//           are not.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

/// `$NAME` in a header is the environment variable NAME, which has to be set; `$$` is a `$`.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_http(const spec::RewardFunctionConfig& config,
                                                           const Setting& setting);

}  // namespace neap::reward
