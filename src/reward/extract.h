// Finds the answer in a response.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string_view>

#include "spec/types/reward_config.h"

namespace neap::reward {

/// The answer in `text` without surrounding white space; nullopt if there is none. Only kWhole
/// reads the text between `<think>` and `</think>`. Boxes joined by "and", "or" or a comma
/// are one answer, including their commands. kPattern finds nothing here (pattern.h).
[[nodiscard]] std::optional<std::string_view> extract(std::string_view text, spec::Extraction how);

}  // namespace neap::reward
