// Limits of encoding or decoding one text, for any tokenizer.json.
#pragma once

#include "base/budget.h"

namespace neap::text {

/// All stages together may write a text this many times, plus kAllowance.
inline constexpr std::size_t kMostGrowth = 100;
inline constexpr std::size_t kAllowance = std::size_t{64} << 20;

/// Budget for a text of this many bytes. Exceeding it throws neap::Error.
[[nodiscard]] Budget text_budget(std::size_t bytes);

}  // namespace neap::text
