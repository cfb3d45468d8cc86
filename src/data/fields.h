// Fields of a row: texts and conversations.
//
// Threads   functions without state.   Failure   kCorrupt with the row's place.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace neap::data {

/// The object that `text` is.
[[nodiscard]] Result<Json> parse_row(std::string_view text, const std::string& where);
/// Whether `value` is a list of messages with a text "role".
[[nodiscard]] bool is_conversation(const Json& value);
/// A text or a conversation; a row that lacks it is an error.
/// `setting`: the configuration key that names the field, for the message where the row lacks it.
[[nodiscard]] Result<Json> text_field(const Json& row, const std::string& key,
                                      const std::string& where, std::string_view setting = {});
/// As text_field; null where the row lacks it.
[[nodiscard]] Result<Json> optional_text_field(const Json& row, const std::string& key,
                                               const std::string& where);
/// What `row` offers the chat template of its conversation `prompt` in "tools": a list of JSON
/// schemas, or that list as JSON text. Null where it has none, and for a text, which has no template.
[[nodiscard]] Result<Json> tools_field(const Json& row, const Json& prompt,
                                       const std::string& where);

}  // namespace neap::data
