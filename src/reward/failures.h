// Words for responses without a score.
//
// Threads   any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reward/reward.h"

namespace neap::reward {

/// "TEXT; the row is FILE:LINE: {...}, the response "..."", shortened.
[[nodiscard]] std::string with_row(std::string_view text, const Response& response);
/// Warns that `count` of `all` responses get the default score. `why`: for the first of them.
void warn_of_defaults(const spec::RewardFunctionConfig& config, std::size_t count, std::size_t all,
                      std::string_view why);

}  // namespace neap::reward
