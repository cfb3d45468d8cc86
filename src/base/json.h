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

/// On one line, or indented by `indent` spaces a level. Bytes that are not UTF-8, as names of files can have, become U+FFFD.
[[nodiscard]] std::string json_text(const Json& value, int indent = -1);

}  // namespace neap
