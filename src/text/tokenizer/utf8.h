// UTF-8 for the tokenizer: decoding a code point, lossy text, character classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace neap::text::utf8 {

using Point = Utf8Point;
/// The code point at the front of a text that is not empty.
[[nodiscard]] inline Point front(std::string_view text) {
  return utf8_front(text);
}
void append(std::string& out, std::int32_t point);
/// Appends `bytes` as text with U+FFFD for what is not UTF-8. An incomplete tail that more bytes
/// could complete is left out unless `final`; returns how many bytes were taken.
std::size_t append_lossy(std::string& out, std::string_view bytes, bool final);

[[nodiscard]] bool is_space(std::int32_t point);        ///< Unicode's White_Space
[[nodiscard]] bool is_word(std::int32_t point);         ///< letters, marks, digits, connectors
[[nodiscard]] bool is_numeric(std::int32_t point);      ///< Rust's char::is_numeric
[[nodiscard]] bool is_punctuation(std::int32_t point);  ///< ASCII's and Unicode's
/// Appends the lower case of a code point, as Rust's char::to_lowercase has it.
void append_lower(std::string& out, std::int32_t point);
/// Length of the white space at the front / at the back of a text.
[[nodiscard]] std::size_t leading_space(std::string_view text);
[[nodiscard]] std::size_t trailing_space(std::string_view text);
/// The code point at the back; -1 when empty or not UTF-8.
[[nodiscard]] std::int32_t back(std::string_view text);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
/// Text that is not UTF-8 comes back as it is.
[[nodiscard]] std::string normalize(std::string_view text, Form form);

}  // namespace neap::text::utf8
