// A reward function outside of this process: a program or a server that scores batches of responses.
//
// A request is {"items": [{"prompt", "response", "truncated", "ground_truth", "row"}, ...]}, on one
// line. A reply is {"scores": [...]}, or the list itself: for each item, in order, a number or an
// object with "score" and further numbers.
// Threads   one at a time.
// Failure   as `on_failure` says: a Status, or the default score for what has none, with a warning.
#pragma once

#include <memory>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

[[nodiscard]] std::unique_ptr<RewardFunction> make_service(const spec::RewardFunctionConfig& config,
                                                           const Setting& setting,
                                                           std::unique_ptr<Transport> transport);

/// The scores of a reply for `count` items; `log` names the parts. Fails on anything else.
[[nodiscard]] Result<std::vector<Score>> parse_reply(std::string_view reply, std::size_t count,
                                                     const std::vector<std::string>& log);

}  // namespace neap::reward
