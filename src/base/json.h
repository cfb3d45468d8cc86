// Reads and writes JSON: nlohmann's type under a short name, and numbers that survive a round trip.
// Files nested deeper than 500 levels are rejected.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

using Json = nlohmann::ordered_json;

/// Parses `text`; a failure names `where` (a file, "file:line") and the byte at which it stopped.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view where);

/// Writes on one line, or indented by `indent` spaces per level. Bytes that are not UTF-8, which
/// file names may contain, become U+FFFD.
[[nodiscard]] std::string json_text(const Json& value, int indent = -1);

}  // namespace neap
