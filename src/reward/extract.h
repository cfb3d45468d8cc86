// Where the answer of a response is.
//
// Threads   functions without state.
#pragma once

#include <optional>
#include <string_view>

#include "reward/pattern.h"
#include "spec/reward_config.h"

namespace neap::reward {

/// The answer in `text`, without white space around it; nullopt where there is none. Only kWhole and
/// kPattern read what `<think>` and `</think>` enclose. Boxes that "and", "or" or a comma joins are one
/// answer, with their commands. `pattern` is
/// read by kPattern only.
[[nodiscard]] std::optional<std::string_view> extract(std::string_view text, spec::Extraction how,
                                                      const Pattern* pattern);

}  // namespace neap::reward
