// Python's str operations on UTF-8. Each counts a step per byte that it reads.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/chat/budget.h"

namespace neap::chat {

[[nodiscard]] std::size_t characters(std::string_view text, Budget& budget);
/// First position of `part` at or after `from`, else npos. Linear time.
[[nodiscard]] std::size_t find_part(std::string_view text, std::string_view part, Budget& budget,
                                    std::size_t from = 0);
/// The bytes in reverse order, for searches from the end.
[[nodiscard]] String reversed_bytes(std::string_view text, Budget& budget);
/// Removes characters of `set` from the ends; nullptr: white space.
[[nodiscard]] Text stripped(const Text& text, const Text* set, bool left, bool right,
                            Budget& budget);
[[nodiscard]] Text upper(std::string_view text, Budget& budget);
[[nodiscard]] Text lower(std::string_view text, Budget& budget);
[[nodiscard]] Text capitalized(std::string_view text, Budget& budget);
/// As the Jinja2 filter: capitalizes the first letter of each word and lowers the others.
[[nodiscard]] Text title(std::string_view text, Budget& budget);
/// `count` below zero: replaces every occurrence.
[[nodiscard]] Text replaced(const Text& text, std::string_view from, std::string_view to,
                            std::int64_t count, Budget& budget);
[[nodiscard]] Text indented(std::string_view text, std::string_view by, bool first, bool blank,
                            Budget& budget);
/// Splits at white space. If `splits` is not negative, the last part contains everything after this
/// number of splits.
[[nodiscard]] Vector<Text> words(const Text& text, std::int64_t splits, Budget& budget);

}  // namespace neap::chat
