// A reward function outside of this process: a program or a server that scores batches of responses.
//
// A request is {"items": [{"prompt", "response", "truncated", "ground_truth", "row"}, ...]}, on one
// line. A reply is {"scores": [...]}, or the list itself: for each item, in order, a number or an
// object with "score", further numbers and, for people, "reason". Instead of scores it may be
// {"error": TEXT, "item": N}: why there are none, and the item that it is about.
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

struct ReplyShape {
  std::size_t count = 0;                ///< of items
  const std::vector<std::string>& log;  ///< names of parts
  bool may_skip = false;                ///< null is a score: none
};
/// The scores of a reply. Fails on anything else.
[[nodiscard]] Result<std::vector<Score>> parse_reply(std::string_view reply,
                                                     const ReplyShape& shape);

}  // namespace neap::reward
