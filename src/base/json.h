// JSON in and out: nlohmann's type under a short name, and writing numbers that survive a round
// trip. Files nested deeper than 500 levels are refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

using Json = nlohmann::ordered_json;

/// Parses `text`; a failure names `where` (a file, "file:line") and the byte at which it stopped.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view where);

}  // namespace neap
