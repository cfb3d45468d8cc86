#include "base/json.h"

#include "base/format.h"
#include "base/json_depth.h"
#include "base/text.h"

namespace neap {
namespace {

// Copying and printing recurse to the depth of a value: deep nesting would overflow the stack.
constexpr int kMaxDepth = 500;

// The parser's reason, which ends with the text where it stopped: any bytes, and any number of them.
std::string shown(std::string_view reason) {
  constexpr std::size_t kStart = 160, kEnd = 80;
  if (const auto start = reason.find("parse error"); start != std::string_view::npos)
    reason.remove_prefix(start);
  if (reason.size() <= kStart + kEnd) return printable(reason);
  return printable(front_of(reason, kStart)) + " ... " +
         printable(reason.substr(reason.size() - kEnd));
}

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
    return Status(ErrorCode::kCorrupt,
                  format("{}: JSON is nested deeper than {} levels", where, kMaxDepth));
  }
  NEAP_TRY(check_not_utf16(text, where));
  // Caught here: modules below bridge/ do not throw.
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    return Status(ErrorCode::kCorrupt, format("{}: not valid JSON: {}", where, shown(e.what())));
  }
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace neap
