// Units behind numbers, as answers have them.
//
// Threads   functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace neap::reward {

/// Whether the words behind a number do not change it: "cm", "square units", "km/h", "cm^2" and
/// words of three letters or more; not "million", "or 5" and names of functions. `in_text`: they
/// stand in \text{}, where one letter is no variable.
[[nodiscard]] bool is_unit(std::string_view words, bool in_text);

/// Whether it is the symbol of a unit, as \\mathrm{} has it: "cm", "kg"; not "i", "e" and other letters
/// that mathematics uses.
[[nodiscard]] bool is_unit_symbol(std::string_view text);

/// Drops a unit behind what is a number, "12 apples", "3/4 hours", "5 cm^2", and returns it; "5
/// million" becomes 5*10^{6}.
std::string drop_unit(std::string& text);

/// A unit of length, mass, time, volume or money, or one by another, and its power, in the first of its kind: 1 cm^2 is 10^-4 m^2.
struct UnitSize {
  int kind = 0, power = 1;
  std::string factor{};  ///< of the power 1, as an expression
  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};
/// nullopt where the words are none of these.
[[nodiscard]] std::optional<UnitSize> size_of_unit(std::string_view words);

}  // namespace neap::reward
