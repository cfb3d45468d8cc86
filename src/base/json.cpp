#include "base/json.h"

namespace neap {

Result<Json> parse_json(std::string_view text, std::string_view where) {
  // The exception stays inside: rooms below torch/ throw nothing.
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    std::string reason = e.what();
    if (const auto colon = reason.find("parse error"); colon != std::string::npos)
      reason = reason.substr(colon);
    return Status(ErrorCode::kCorrupt, std::string(where) + ": not valid JSON: " + reason);
  }
}

}  // namespace neap
