// Texts for messages and terminals. Texts from outside may not be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// kCorrupt if `text` begins with the byte-order mark of UTF-16. The message names the command that
/// converts it; `where` is its file.
[[nodiscard]] Status check_not_utf16(std::string_view text, std::string_view where);

/// Returns `text` on one line and as UTF-8. Control characters and invalid bytes are written as in
/// C ("\n", "\x1b").
[[nodiscard]] std::string printable(std::string_view text);

/// Terminal columns of `text`, one line of UTF-8: two for wide characters, none for combining ones.
[[nodiscard]] std::size_t columns_of(std::string_view text);
/// Bytes at the front of `text` that fit in `columns`, in whole characters; at least one character.
[[nodiscard]] std::size_t bytes_of_columns(std::string_view text, std::size_t columns);
/// The front of `text`: at most `bytes` bytes, in whole characters.
[[nodiscard]] std::string_view front_of(std::string_view text, std::size_t bytes);
/// As front_of(), with "..." appended if `text` is longer.
[[nodiscard]] std::string excerpt(std::string_view text, std::size_t bytes);
/// Shortens `text` to at most `columns` columns: its beginning and end with " ... " between them.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t columns);

/// Concatenates `parts` with `between` as separator.
[[nodiscard]] std::string joined(std::span<const std::string> parts, std::string_view between);
[[nodiscard]] std::string joined(std::span<const std::int64_t> numbers, std::string_view between);

/// Number of bytes inserted, removed or replaced between `a` and `b`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace neap
