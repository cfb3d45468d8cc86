// Python's operations on str, over UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace neap::chat {

[[nodiscard]] std::size_t characters(std::string_view text);
/// Without the characters of `set` at its ends; nullptr: without white space.
[[nodiscard]] std::string stripped(std::string_view text, const std::string* set, bool left,
                                   bool right);
[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
[[nodiscard]] std::string capitalized(std::string_view text);
/// As Jinja2's filter: the first letter of each word large, the others small.
[[nodiscard]] std::string title(std::string_view text);
/// `count` below zero: every place.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from,
                                   std::string_view to, std::int64_t count);
[[nodiscard]] std::string indented(std::string_view text, std::string_view by, bool first,
                                   bool blank);
/// Parts between white space.
[[nodiscard]] std::vector<std::string> words(std::string_view text);

}  // namespace neap::chat
