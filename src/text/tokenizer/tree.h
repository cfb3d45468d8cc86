// JSON of tokenizer files, and checks that their readers share.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/status.h"
#include "base/text.h"

namespace neap::text {

/// JSON whose objects are sorted maps: a vocabulary of 150,000 keys parses in time n log n. With
/// neap::Json it would be too slow: its objects keep the order of keys and are searched linearly.
using Tree = nlohmann::json;

/// A field that may be absent; null counts as absent.
[[nodiscard]] inline const Tree& field(const Tree& object, const char* key) {
  static const Tree null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}
[[nodiscard]] inline bool flag(const Tree& object, const char* key, bool absent = false) {
  const Tree& v = field(object, key);
  return v.is_boolean() ? v.get<bool>() : absent;
}
[[nodiscard]] inline std::string text_of(const Tree& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// Reads the text of a token: "<s>" or {"content": "<s>", ...}.
[[nodiscard]] inline std::string token_text(const Tree& value) {
  return value.is_object() ? text_of(field(value, "content")) : text_of(value);
}

[[noreturn]] inline void refuse(std::string_view where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, format("{}: {}", where, what));
}
[[noreturn]] inline void corrupt(std::string_view where, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, format("{}: {}", where, what));
}

/// Parses JSON text. Fails on text that nests deeper than any tokenizer does, because its readers
/// are recursive.
[[nodiscard]] Tree parse_tree(std::string_view text, std::string_view where);

/// The type of a pipeline stage. `what` is the stage's field, for messages.
[[nodiscard]] inline std::string type_of(const Tree& stage, std::string_view where,
                                         const char* what) {
  const std::string type = stage.is_object() ? text_of(field(stage, "type")) : "";
  if (type.empty())
    corrupt(where, format("its {} has no type: {}", what, excerpt(stage.dump(), 80)));
  return type;
}
/// The stages of a Sequence.
[[nodiscard]] inline const Tree& stages_of(const Tree& sequence, const char* key,
                                           std::string_view where) {
  const Tree& stages = field(sequence, key);
  if (!stages.is_array()) corrupt(where, format("a Sequence has no array \"{}\"", key));
  return stages;
}

}  // namespace neap::text
