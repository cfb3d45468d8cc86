// Texts in messages and on terminals; those from outside may not be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// kCorrupt, with the command that converts it, where `text` begins with the byte-order mark of
/// UTF-16; `where` is its file.
[[nodiscard]] Status check_not_utf16(std::string_view text, std::string_view where);

/// `text` on one line and as UTF-8: control characters and bytes of no character as in C ("\n",
/// "\x1b").
[[nodiscard]] std::string printable(std::string_view text);

/// Columns of a terminal that `text`, one line of UTF-8, takes: two for wide characters, none for
/// combining ones.
[[nodiscard]] std::size_t columns_of(std::string_view text);
/// The bytes at the front of `text` that fit in `columns`, in whole characters; at least one.
[[nodiscard]] std::size_t bytes_of_columns(std::string_view text, std::size_t columns);
/// The front of `text` in at most `bytes` bytes, in whole characters.
[[nodiscard]] std::string_view front_of(std::string_view text, std::size_t bytes);
/// The same, with "..." behind it where `text` is longer.
[[nodiscard]] std::string excerpt(std::string_view text, std::size_t bytes);
/// `text` in at most `columns` columns: where it is longer, its beginning and its end with " ... "
/// between them.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t columns);

/// All of `parts`, with `between` between two.
[[nodiscard]] std::string joined(std::span<const std::string> parts, std::string_view between);
[[nodiscard]] std::string joined(std::span<const std::int64_t> numbers, std::string_view between);

/// How many bytes differ: insertions, removals and replacements.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace neap
