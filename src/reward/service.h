// A reward function outside of this process: a program or a server that scores batches of responses.
//
// A request is {"items": [{"prompt", "response", "truncated", "ground_truth", "row"}, ...]}, on one
// line. A reply is {"scores": [...]}, or the list itself: for each item, in order, a number or an
// object with "score", further numbers and, for people, "reason"; {"error": TEXT} where it has no score, and why. Instead
// of scores it may be {"error": TEXT, "item": N}: why there are none, and the item that it is about. With "retry": false
// an error would come again.
// Threads   one at a time.
// Failure   as `on_failure` says: a Status, or the default score for each response that has none, with a warning.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/request_queue.h"
#include "reward/reward.h"

namespace neap::reward {

[[nodiscard]] std::unique_ptr<RewardFunction> make_service(const spec::RewardFunctionConfig& config,
                                                           const Setting& setting,
                                                           std::unique_ptr<Transport> transport);

/// What a reply has for an item: a score, or why there is none.
struct ItemReply {
  std::optional<Score> score;
  std::string failure{};
  bool again = true;  ///< whether the failure may not come again
};

struct ReplyShape {
  std::size_t count = 0;                ///< of items
  const std::vector<std::string>& log;  ///< names of parts
  bool may_skip = false;                ///< null is a score: none
};
/// One for each item. Fails on a reply that is no list of so many.
[[nodiscard]] Result<std::vector<ItemReply>> parse_reply(std::string_view reply,
                                                         const ReplyShape& shape);

}  // namespace neap::reward
