// Fields of a row: texts and conversations.
//
// Threads   stateless functions.
//
// Failure   kCorrupt with the row's place.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace neap::data {

/// Parses `text`, which must be a JSON object.
[[nodiscard]] Result<Json> parse_row(std::string_view text, const std::string& where);
/// Whether `value` is a list of messages with a text "role".
[[nodiscard]] bool is_conversation(const Json& value);
/// Returns a text or a conversation. Fails if the row lacks it; the message then names `setting`,
/// the configuration key that selects the field.
[[nodiscard]] Result<Json> text_field(const Json& row, const std::string& key,
                                      const std::string& where, std::string_view setting = {});
/// As text_field(), but null if the row lacks it.
[[nodiscard]] Result<Json> optional_text_field(const Json& row, const std::string& key,
                                               const std::string& where);
/// Tools of the row's conversation `prompt` for the chat template. "tools" holds a list of JSON
/// schemas, or that list as JSON text. Null without tools, and for a text, which uses no template.
[[nodiscard]] Result<Json> tools_field(const Json& row, const Json& prompt,
                                       const std::string& where);

}  // namespace neap::data
