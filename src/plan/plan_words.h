// The words that plans use for people and in JSON alike.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace neap::plan {

/// "need", "stay", "host" (away, contents kept) or "drop" (away, contents given up).
[[nodiscard]] std::string cell_word(const MemoryPlan& plan, std::size_t tag, std::size_t phase);
[[nodiscard]] std::string contents_word(Contents contents);  ///< "live", "frozen", "scratch"
[[nodiscard]] std::string arena_word(arena::Policy policy);  ///< "host", "discard"

}  // namespace neap::plan
