// What encoding or decoding one text may use, whatever a tokenizer.json makes of it.
#pragma once

#include "base/budget.h"

namespace neap::text {

/// A text may be written this many times over by all stages together, and kAllowance more.
inline constexpr std::size_t kMostGrowth = 100;
inline constexpr std::size_t kAllowance = std::size_t{64} << 20;

/// Of a text of so many bytes. Fails with neap::Error.
[[nodiscard]] Budget text_budget(std::size_t bytes);

}  // namespace neap::text
