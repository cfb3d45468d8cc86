// A reward function outside of this process: a program or a server that scores batches of
// responses.
//
// Request   {"items": [{"prompt", "response", "truncated", "ground_truth", "row"}, ...]}, on one
//           line.
//
// Reply     {"scores": [...]}, or the list itself, with one entry per item in order. An entry is a
//           number, or an object with "score", further numbers, and "reason" for people. {"error":
//           TEXT} in place of an entry means that the item has no score.
//
// Error     {"error": TEXT, "item": N} as the whole reply means that there are no scores; N is the
//           item that caused it. With "retry": false the error would occur again.
//
// Threads   one at a time.
//
// Failure   as `on_failure` says: a Status, or the default score for each response without one,
//           with a warning.
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

/// The reply for an item: a score, or a failure.
struct ItemReply {
  std::optional<Score> score;
  std::string failure{};
  bool again = true;  ///< a retry may succeed
};

struct ReplyShape {
  std::size_t count = 0;                ///< number of items
  const std::vector<std::string>& log;  ///< names of parts
  bool may_skip = false;                ///< null means no score
};
/// One reply per item. Fails unless the reply is a list of this length.
[[nodiscard]] Result<std::vector<ItemReply>> parse_reply(std::string_view reply,
                                                         const ReplyShape& shape);

}  // namespace neap::reward
