// The parts of an answer: numbers, expressions and what is made of them.
//
// Threads   functions without state.
// Cost      linear in the text's length for each level, at most 16 levels.
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
  kRelation,    ///< inequalities that are no interval
  kTuple,       ///< also an interval
  kList,        ///< also a set
  kUnion,
  kMatrix
};

struct Answer {
  AnswerKind kind = AnswerKind::kText;
  /// Without spaces; of a tuple its brackets, of a relation its signs.
  std::string text{};
  /// Of an interval, the variable that is in it where it is an inequality; else the name before "=".
  std::string name{};
  std::vector<std::string> names{};  ///< of an assignment
  std::string decimal{};             ///< canonical, where it is a plain number
  std::optional<Expression> expression{};
  std::optional<Expression>
      common{};  ///< with logarithms to base 10, where it has some without a base
  std::vector<Answer> items{};
};

/// Reads text as clean_latex() left it. "x = 5" is 5, "x < 5" and "x \in (-\infty, 5)" are the
/// interval, "1:2" is 1/2.
[[nodiscard]] Answer parse_answer(std::string_view text);
/// The same, but an equation stays one.
[[nodiscard]] Answer parse_statement(std::string_view text);

/// 1 for a bracket that opens, -1 for one that closes, else 0.
[[nodiscard]] int nesting(char c);
/// `text` as it is compared where it is no mathematics: Answer::text.
[[nodiscard]] std::string squeezed(std::string_view text);

}  // namespace neap::reward
