#include "data/fields.h"

#include <algorithm>

#include "base/format.h"

namespace neap::data {

Result<Json> parse_row(std::string_view text, const std::string& where) {
  NEAP_TRY_ASSIGN(Json row, parse_json(text, where, read_limits::kRow));
  if (row.is_object()) return row;
  return Status(ErrorCode::kCorrupt,
                format("{}: the line is {}; each line is one JSON object", where, row.type_name()));
}

bool is_conversation(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& message) {
           return message.is_object() && message.contains("role") && message["role"].is_string();
         });
}

Result<Json> text_field(const Json& row, const std::string& key, const std::string& where,
                        std::string_view setting) {
  const auto at = row.find(key);
  if (at == row.end()) {
    std::string have;
    for (const auto& item : row.items()) have += (have.empty() ? "" : ", ") + item.key();
    return Status(ErrorCode::kCorrupt,
                  format("{}: field \"{}\" is missing; the line has: {}{}", where, key, have,
                         setting.empty() ? "" : format(". Set {} to the field to read", setting)));
  }
  if (at->is_string() || is_conversation(*at)) return *at;
  if (at->is_array()) {
    return Status(
        ErrorCode::kCorrupt,
        format("{}: field \"{}\" is a list, but not of messages with a text \"role\"", where, key));
  }
  return Status(ErrorCode::kCorrupt,
                format("{}: field \"{}\" is {}; text or a list of messages is wanted", where, key,
                       at->type_name()));
}

Result<Json> optional_text_field(const Json& row, const std::string& key,
                                 const std::string& where) {
  const auto at = row.find(key);
  if (at == row.end() || at->is_null()) return Json();
  return text_field(row, key, where);
}

Result<Json> tools_field(const Json& row, const Json& prompt, const std::string& where) {
  const auto at = row.find("tools");
  if (prompt.is_string() || at == row.end()) return Json();
  Json tools = *at;
  if (at->is_string()) {
    NEAP_TRY_ASSIGN(tools, parse_json(at->get<std::string>(), where + ": field \"tools\""));
  }
  const bool wanted =
      tools.is_array() &&
      std::all_of(tools.begin(), tools.end(), [](const Json& tool) { return tool.is_object(); });
  if (tools.is_null() || wanted) return tools;
  return Status(
      ErrorCode::kCorrupt,
      format("{}: field \"tools\" is {}{}; a list of JSON schemas (objects), or that list as "
             "JSON text, is wanted",
             where, at->is_string() ? "text of " : "",
             tools.is_array() ? "a list with other values than objects"
                              : std::string(tools.type_name())));
}

}  // namespace neap::data
