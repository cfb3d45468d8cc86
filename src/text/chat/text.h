// Python's operations on str, over UTF-8. Each spends the steps of the bytes that it reads.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/chat/budget.h"

namespace neap::chat {

[[nodiscard]] std::size_t characters(std::string_view text, Budget& budget);
/// The first place of `part` at or behind `from`, else npos. Linear time.
[[nodiscard]] std::size_t find_part(std::string_view text, std::string_view part, Budget& budget,
                                    std::size_t from = 0);
/// The bytes in reverse order: where the last of something is looked for.
[[nodiscard]] String reversed_bytes(std::string_view text, Budget& budget);
/// Without the characters of `set` at its ends; nullptr: without white space.
[[nodiscard]] Text stripped(const Text& text, const Text* set, bool left, bool right,
                            Budget& budget);
[[nodiscard]] Text upper(std::string_view text, Budget& budget);
[[nodiscard]] Text lower(std::string_view text, Budget& budget);
[[nodiscard]] Text capitalized(std::string_view text, Budget& budget);
/// As Jinja2's filter: the first letter of each word large, the others small.
[[nodiscard]] Text title(std::string_view text, Budget& budget);
/// `count` below zero: every place.
[[nodiscard]] Text replaced(const Text& text, std::string_view from, std::string_view to,
                            std::int64_t count, Budget& budget);
[[nodiscard]] Text indented(std::string_view text, std::string_view by, bool first, bool blank,
                            Budget& budget);
/// Parts between white space; behind `splits` of them the rest, if that is not below zero.
[[nodiscard]] Vector<Text> words(const Text& text, std::int64_t splits, Budget& budget);

}  // namespace neap::chat
