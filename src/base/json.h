// Reads and writes JSON: nlohmann's type under a short name, and numbers that survive a round trip.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/read_limits.h"
#include "base/status.h"

namespace neap {

using Json = nlohmann::ordered_json;

/// Parses `text`; a failure names `where` (a file, "file:line") and the byte at which it stopped,
/// or the limit that check_json() found exceeded.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view where,
                                      const ReadLimits& limits = read_limits::kJson);

/// Writes on one line, or indented by `indent` spaces per level. Bytes that are not UTF-8, which
/// file names may contain, become U+FFFD.
[[nodiscard]] std::string json_text(const Json& value, int indent = -1);

}  // namespace neap
