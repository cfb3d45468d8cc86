// A server that scores batches of responses: POST with a JSON body, answered in JSON.
//
// libcurl is loaded when the first transport is made, so that programs without such a function do
// not need it.
//
// Threads   one at a time.
//
// Failure   a Status if libcurl is missing, or the server cannot be reached, is too slow, or
//           answers with a status other than 2xx. 408, 429 and 5xx are retried after a pause; other
//           statuses are not.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

/// `$NAME` in a header is replaced by the environment variable NAME, which must be set. `$$` is a
/// `$`.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_http(const spec::RewardFunctionConfig& config,
                                                           const Setting& setting);

}  // namespace neap::reward
