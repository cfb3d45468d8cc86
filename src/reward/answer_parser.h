// Functions shared by the files of the answer parser. answer.cpp handles lists, brackets, chains
// and leaves. answer_relations.cpp handles inequalities, intervals and sets.
//
// Pure.
//
// Failure   nullopt if the text has another form.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/answer.h"

namespace neap::reward::answer_parser {

inline constexpr std::size_t kMaxItems = 64;

/// Splits at `separator` outside of brackets. Mixed brackets such as "(a, b]" match.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text,
                                                  std::string_view separator);
/// `depth`: nesting depth of the text within the answer.
[[nodiscard]] Answer parse(std::string_view text, int depth);
/// Makes an answer of these parts.
[[nodiscard]] Answer many(AnswerKind kind, const std::vector<std::string_view>& parts, int depth,
                          std::string text);

/// Parses x < 5, 1 < x \le 2, x \ne 3 or a < b. The result is an interval or union if one variable
/// is bounded.
[[nodiscard]] std::optional<Answer> parse_relation(std::string_view text, int depth);
/// Parses \mathbb{R} \setminus \{1, 2\} in the form of clean_latex().
[[nodiscard]] std::optional<Answer> parse_difference(std::string_view text, int depth);
/// Parses 1 < x and x < 2 as an interval.
[[nodiscard]] std::optional<Answer> parse_both(std::string_view text, int depth);

}  // namespace neap::reward::answer_parser
