// Finds the answer in a response.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string_view>

#include "reward/pattern.h"
#include "spec/types/reward_config.h"

namespace neap::reward {

/// The answer in `text` without surrounding white space; nullopt if there is none. Only kWhole and
/// kPattern read the text between `<think>` and `</think>`. Boxes joined by "and", "or" or a comma
/// are one answer, including their commands. Only kPattern uses `pattern`.
[[nodiscard]] std::optional<std::string_view> extract(std::string_view text, spec::Extraction how,
                                                      const Pattern* pattern);

}  // namespace neap::reward
