// What the files of the parser of answers share: answer.cpp has lists, brackets, chains and leaves,
// answer_relations.cpp inequalities, intervals and sets.
//
// Pure.   Failure   nullopt: the text is something else.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/answer.h"

namespace neap::reward::answer_parser {

inline constexpr std::size_t kMaxItems = 64;

/// Splits at `separator` outside of brackets. "(a, b]" is one bracket.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text,
                                                  std::string_view separator);
/// `depth`: of the answers that the text is a part of.
[[nodiscard]] Answer parse(std::string_view text, int depth);
/// An answer of these parts.
[[nodiscard]] Answer many(AnswerKind kind, const std::vector<std::string_view>& parts, int depth,
                          std::string text);

/// x < 5, 1 < x \le 2, x \ne 3, a < b: an interval or union where it bounds one variable.
[[nodiscard]] std::optional<Answer> parse_relation(std::string_view text, int depth);
/// \mathbb{R} \setminus \{1, 2\}, as clean_latex() left it.
[[nodiscard]] std::optional<Answer> parse_difference(std::string_view text, int depth);
/// 1 < x and x < 2, as an interval.
[[nodiscard]] std::optional<Answer> parse_both(std::string_view text, int depth);

}  // namespace neap::reward::answer_parser
