// UTF-8 for tokenizers: decoding of code points, lossy text, character classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace neap::text::utf8 {

using Point = Utf8Point;
/// The first code point of a non-empty text.
[[nodiscard]] inline Point front(std::string_view text) {
  return utf8_front(text);
}
void append(std::string& out, std::int32_t point);
/// Appends `bytes` as text, with U+FFFD for bytes that are not UTF-8. Unless `final`, skips an
/// incomplete tail that more bytes could complete. Returns the number of bytes used.
std::size_t append_lossy(std::string& out, std::string_view bytes, bool final);

[[nodiscard]] bool is_space(std::int32_t point);        ///< Unicode's White_Space
[[nodiscard]] bool is_word(std::int32_t point);         ///< letters, marks, digits, connectors
[[nodiscard]] bool is_numeric(std::int32_t point);      ///< Rust's char::is_numeric
[[nodiscard]] bool is_punctuation(std::int32_t point);  ///< of ASCII and Unicode
/// Appends the lower case of a code point, as Rust's char::to_lowercase.
void append_lower(std::string& out, std::int32_t point);
/// Length of the white space at the beginning or end of a text.
[[nodiscard]] std::size_t leading_space(std::string_view text);
[[nodiscard]] std::size_t trailing_space(std::string_view text);
/// The last code point; -1 if the text is empty or not UTF-8.
[[nodiscard]] std::int32_t back(std::string_view text);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
/// Returns text that is not UTF-8 unchanged.
[[nodiscard]] std::string normalize(std::string_view text, Form form);

}  // namespace neap::text::utf8
