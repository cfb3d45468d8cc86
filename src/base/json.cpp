#include "base/json.h"

#include "base/json_depth.h"

namespace neap {
namespace {

// Copying and printing recurse to the depth of a value: deep nesting would overflow the stack.
constexpr int kMaxDepth = 500;

}  // namespace

bool json_deeper_than(std::string_view text, int levels) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result<Json> parse_json(std::string_view text, std::string_view where) {
  if (json_deeper_than(text, kMaxDepth)) {
    return Status(ErrorCode::kCorrupt, std::string(where) + ": JSON is nested deeper than " +
                                           std::to_string(kMaxDepth) + " levels");
  }
  // Caught here: modules below bridge/ do not throw.
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
