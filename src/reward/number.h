// Decimal numbers as people write them in answers.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace neap::reward {

/// The canonical form of a decimal number: "1,234.50" -> "1234.5", "-0" -> "0", "1.2e3" -> "1200".
/// Accepts signs, leading zeros, groups of three digits and exponents up to 400. nullopt for
/// anything else.
[[nodiscard]] std::optional<std::string> canonical_decimal(std::string_view text);

/// The last decimal number in a text: "costs $1,200.50." -> "1,200.50". A "-" belongs to the number
/// unless a digit, a letter or a bracket directly precedes it.
[[nodiscard]] std::optional<std::string_view> last_number(std::string_view text);

// For ASCII, independent of the locale.
[[nodiscard]] constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
[[nodiscard]] constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Converts ASCII letters to lower case.
[[nodiscard]] std::string lower_case(std::string_view text);

/// Removes white space at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace neap::reward
