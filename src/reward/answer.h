// Parses an answer into its parts: numbers, expressions and combinations of them.
//
// Threads   stateless functions.
//
// Cost      linear in the text's length per level, at most 16 levels.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/expression.h"

namespace neap::reward {

enum class AnswerKind {
  kText,
  kExpression,
  kEquation,
  kAssignment,  ///< x = 1, y = 2: the values in the order of the text
  kRelation,    ///< inequalities that do not form an interval
  kTuple,       ///< also an interval
  kList,        ///< also a set
  kUnion,
  kMatrix
};

struct Answer {
  AnswerKind kind = AnswerKind::kText;
  /// Text without spaces. For a tuple its brackets, for a relation its signs.
  std::string text{};
  /// For an interval from an inequality, the bounded variable. Otherwise the name before "=".
  std::string name{};
  std::vector<std::string> names{};  ///< of an assignment
  std::string decimal{};             ///< canonical form if it is a plain number
  std::optional<Expression> expression{};
  std::optional<Expression>
      common{};  ///< the expression with base 10 for logarithms that have no base, if any
  std::vector<Answer> items{};
};

/// Parses the output of clean_latex(). "x = 5" is 5, "x < 5" and "x \in (-\infty, 5)" are the
/// interval, "1:2" is 1/2.
[[nodiscard]] Answer parse_answer(std::string_view text);
/// As parse_answer(), but an equation stays an equation.
[[nodiscard]] Answer parse_statement(std::string_view text);

/// 1 for an opening bracket, -1 for a closing one, else 0.
[[nodiscard]] int nesting(char c);
/// Normalizes text that is not mathematics for comparison, as in Answer::text.
[[nodiscard]] std::string squeezed(std::string_view text);

}  // namespace neap::reward
