// Units behind numbers, as answers have them.
//
// Threads   functions without state.
#pragma once

#include <string>
#include <string_view>

namespace neap::reward {

/// Whether the words behind a number do not change it: "cm", "square units", "km/h", "cm^2" and
/// words of three letters or more; not "million", "or 5" and names of functions. `in_text`: they
/// stand in \text{}, where one letter is no variable.
[[nodiscard]] bool is_unit(std::string_view words, bool in_text);

/// Drops a unit behind what is a number: "12 apples", "3/4 hours", "5 cm^2".
void drop_unit(std::string& text);

}  // namespace neap::reward
