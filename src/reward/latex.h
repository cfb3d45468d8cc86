// Removes LaTeX and prose around an answer without changing its meaning.
//
// Threads   stateless functions.
#pragma once

#include <string>
#include <string_view>

namespace neap::reward {

struct CleanedText {
  std::string text;
  bool percent = false;   ///< a percent sign at the end was removed
  std::string unit{};     ///< a unit after a number, which was removed
  std::string modulus{};  ///< the modulus of "9 \\pmod{11}", which was removed
};

/// Normalizes a text.
///
/// - Removed: formula delimiters, spacing, \left and \right, currency signs, degree signs, units in
///   \text{} or as words after a number, and a full stop at the end.
/// - Replaced: \dfrac by \frac, \cdot and \times by "*", \leq and <= by "\le ", typographic
///   characters by plain ones, "and" and "or" between parts by a comma.
/// - A degree sign in a trigonometric function becomes "\degree ".
[[nodiscard]] CleanedText clean_latex(std::string_view text);

}  // namespace neap::reward
