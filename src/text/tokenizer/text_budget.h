// Limits of encoding or decoding one text, for any tokenizer.json.
#pragma once

#include "base/budget.h"

namespace neap::text {

/// All stages together may write a text this many times, plus a fixed allowance.
inline constexpr auto kMostGrowth =
    static_cast<std::size_t>(read_limits::kTokenizer.memory.of_byte);

/// Budget for a text of this many bytes. Exceeding it throws neap::Error.
[[nodiscard]] Budget text_budget(std::size_t bytes);

}  // namespace neap::text
