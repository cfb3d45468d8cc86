// Removes what LaTeX and prose put around an answer without changing what it says.
//
// Threads   functions without state.
#pragma once

#include <string>
#include <string_view>

namespace neap::reward {

struct CleanedText {
  std::string text;
  bool percent = false;   ///< it ended with a percent sign, which is removed
  std::string unit{};     ///< that was removed behind a number
  std::string modulus{};  ///< of "9 \\pmod{11}", which is removed
};

/// Delimiters of formulas, spacing, \left and \right, signs of currencies, degrees, units in \text{}
/// or as words behind a number, and a full stop at the end go; \dfrac becomes \frac, \cdot and
/// \times "*", \leq and <= "\le ", typographic characters their plain forms, "and" and "or" between
/// parts a comma. A degree in a function of angles is "\degree ".
[[nodiscard]] CleanedText clean_latex(std::string_view text);

}  // namespace neap::reward
