// Units after numbers in answers.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace neap::reward {

/// Whether words after a number do not change it. True for "cm", "square units", "km/h", "cm^2" and
/// words of three letters or more. False for "million", "or 5" and names of functions. `in_text`:
/// they are inside \text{}, where a single letter is not a variable.
[[nodiscard]] bool is_unit(std::string_view words, bool in_text);

/// Whether the text is the symbol of a unit, as in \\mathrm{}: "cm", "kg". False for "i", "e" and
/// other letters that mathematics uses.
[[nodiscard]] bool is_unit_symbol(std::string_view text);

/// Removes a unit after a number ("12 apples", "3/4 hours", "5 cm^2") and returns it. "5 million"
/// becomes 5*10^{6}.
std::string drop_unit(std::string& text);

/// A unit of length, mass, time, volume or money, or a quotient of two, and its power. The factor
/// converts to the first unit of its kind: 1 cm^2 is 10^-4 m^2.
struct UnitSize {
  int kind = 0, power = 1;
  std::string factor{};  ///< factor of the power 1, as an expression
  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};
/// nullopt if the words are not such a unit.
[[nodiscard]] std::optional<UnitSize> size_of_unit(std::string_view words);

}  // namespace neap::reward
