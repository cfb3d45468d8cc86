#include "reward/answer.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "reward/expression_parser.h"
#include "reward/number.h"

namespace neap::reward {
namespace {

constexpr std::size_t kMaxItems = 64;
constexpr int kMaxLevels = 16;

// Splits at `separator` outside of brackets. "(a, b]" is one bracket.
std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> out;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += nesting(text[i]);
    if (depth == 0 && text.substr(i).starts_with(separator)) {
      out.push_back(trimmed(text.substr(start, i - start)));
      start = i + separator.size();
      i = start - 1;
    }
  }
  out.push_back(trimmed(text.substr(start)));
  return out;
}

// The bracket that opens at the front closes at the end.
bool is_enclosed(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += nesting(text[i]);
    if (depth == 0) return i + 1 == text.size();
  }
  return false;
}

Answer parse(std::string_view text, int depth);

Answer many(AnswerKind kind, const std::vector<std::string_view>& parts, int depth,
            std::string text) {
  Answer out{.kind = kind, .text = std::move(text)};
  for (const std::string_view part : parts) out.items.push_back(parse(part, depth + 1));
  return out;
}

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > 12) return false;
  if (text.size() <= 2) return std::isalpha(static_cast<unsigned char>(text[0])) != 0;
  // f(x), x_1, y_{12}
  if (std::isalpha(static_cast<unsigned char>(text[0])) != 0)
    return text[1] == '(' || text[1] == '_';
  // (x, y): letters in their order, so that a tuple without names has the same
  if (text.front() != '(' || text.back() != ')') return false;
  const auto letters = split(text.substr(1, text.size() - 2), ",");
  return letters.size() > 1 &&
         std::all_of(
             letters.begin(), letters.end(),
             [](std::string_view letter) { return letter.size() == 1 && is_letter(letter[0]); }) &&
         std::is_sorted(letters.begin(), letters.end());
}

// "x = 5", "5 = x" and "x \in [0, 1)": the name and what stands on the other side of the sign.
struct Named {
  std::string_view name, rest;
};
Named named(std::string_view text) {
  for (const std::string_view sign : {"\\in ", "="}) {
    const auto sides = split(text, sign);
    if (sides.size() != 2) continue;
    if (is_name(sides[0])) return {sides[0], sides[1]};
    if (sign == "=" && is_name(sides[1])) return {sides[1], sides[0]};
  }
  return {"", text};
}

// Names go where they say nothing: all parts are values of one variable, which the first may name.
void drop_names(std::vector<std::string_view>& parts) {
  const std::string_view name = named(parts.front()).name;
  const auto is_same = [&](std::string_view part) {
    const std::string_view own = named(part).name;
    return own == name || (own.empty() && part.find('=') == std::string_view::npos);
  };
  if (name.empty() || !std::all_of(parts.begin(), parts.end(), is_same)) return;
  for (std::string_view& part : parts) part = named(part).rest;
}

// The body of \begin{...}\end{...}; brackets may stand around it.
std::optional<std::string_view> matrix_body(std::string_view text) {
  constexpr std::string_view kBegin = "\\begin{";
  if (text.size() > 2 && nesting(text[0]) == 1 && is_enclosed(text))
    text = trimmed(text.substr(1, text.size() - 2));
  const std::size_t name_end = text.find('}');
  if (!text.starts_with(kBegin) || name_end == std::string_view::npos) return std::nullopt;
  const std::string_view name = text.substr(kBegin.size(), name_end - kBegin.size());
  const std::string tail = "\\end{" + std::string(name) + "}";
  // vmatrix is a determinant.
  const bool matrix = name.ends_with("matrix") && name != "vmatrix" && name != "Vmatrix";
  if ((!matrix && name != "array") || !text.ends_with(tail)) return std::nullopt;
  std::string_view body = text.substr(name_end + 1, text.size() - tail.size() - name_end - 1);
  if (body.find("\\end{") != std::string_view::npos) return std::nullopt;
  if (name == "array" && body.starts_with('{')) {
    const std::size_t columns = body.find('}');
    if (columns == std::string_view::npos) return std::nullopt;
    body.remove_prefix(columns + 1);
  }
  return body;
}

std::optional<Answer> parse_matrix(std::string_view text, int depth) {
  const auto body = matrix_body(text);
  if (!body) return std::nullopt;
  Answer out{.kind = AnswerKind::kMatrix};
  for (const std::string_view row : split(*body, "\\\\")) {
    if (row.empty()) continue;  // behind the last
    out.items.push_back(many(AnswerKind::kTuple, split(row, "&"), depth, ""));
  }
  return out;
}

// Brackets around parts: {a, b}, (a, b), [a, b).
std::optional<Answer> parse_brackets(std::string_view text, int depth) {
  const bool escaped = text.starts_with("\\{") && text.ends_with("\\}") && text.size() >= 4;
  if (!escaped && (text.size() < 3 || nesting(text[0]) != 1 || !is_enclosed(text)))
    return std::nullopt;
  const std::size_t width = escaped ? 2 : 1;
  const auto parts = split(text.substr(width, text.size() - 2 * width), ",");
  if (parts.size() > kMaxItems) return std::nullopt;
  if (escaped && parts.size() == 1) {  // {x : x < 5}, or its one element
    for (const std::string_view sign : {":", "\\mid", "|"}) {
      const auto sides = split(parts[0], sign);
      if (sides.size() == 2 && is_name(sides[0])) return parse(sides[1], depth + 1);
    }
    if (parts[0] != "\\emptyset") return parse(parts[0], depth + 1);
  }
  if (parts.size() < 2) return std::nullopt;
  if (escaped || text.front() == '{') return many(AnswerKind::kList, parts, depth, "");
  return many(AnswerKind::kTuple, parts, depth, {text.front(), text.back()});
}

// Sides and signs outside of brackets: '<', 'l' and 'n' for < \le \ne, '>' and 'g' for > \ge.
struct Relation {
  std::vector<std::string_view> sides;
  std::string signs;
};
Relation relation_of(std::string_view text) {
  constexpr std::pair<std::string_view, char> kSigns[] = {
      {"<", '<'}, {">", '>'}, {"\\le ", 'l'}, {"\\ge ", 'g'}, {"\\ne ", 'n'}};
  Relation out;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += nesting(text[i]);
    for (const auto& [sign, letter] : kSigns) {
      if (depth != 0 || !text.substr(i).starts_with(sign)) continue;
      out.sides.push_back(trimmed(text.substr(start, i - start)));
      out.signs += letter;
      start = i + sign.size();
      i = start - 1;
      break;
    }
  }
  out.sides.push_back(trimmed(text.substr(start)));
  return out;
}

bool is_constant(std::string_view text) {
  const auto expression = parse_expression(text);
  return expression && expression->variables().empty();
}
bool is_variable(std::string_view text) {
  return is_name(text) && !is_constant(text);
}

// The interval that x < 5 or 1 < x \le 2 is, with all signs to one side.
std::optional<Answer> interval_of(const Relation& relation, int depth) {
  const auto& sides = relation.sides;
  const std::size_t at = sides.size() == 2 && is_variable(sides[0]) ? 0 : 1;
  if (sides.size() > 3 || !is_variable(sides[at])) return std::nullopt;
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (i != at && !is_constant(sides[i])) return std::nullopt;
  const std::string_view below = at == 0 ? "-\\infty" : sides[0];
  const std::string_view above = at + 1 == sides.size() ? "\\infty" : sides[at + 1];
  Answer out = many(AnswerKind::kTuple, {below, above}, depth, "()");
  if (at == 1 && relation.signs[0] == 'l') out.text[0] = '[';
  if (at + 1 < sides.size() && relation.signs.back() == 'l') out.text[1] = ']';
  out.name = sides[at];
  return out;
}

std::optional<Answer> parse_relation(std::string_view text, int depth) {
  Relation relation = relation_of(text);
  const auto is_empty = [](std::string_view side) { return side.empty(); };
  if (relation.sides.size() < 2 || relation.sides.size() > kMaxItems ||
      std::any_of(relation.sides.begin(), relation.sides.end(), is_empty))
    return std::nullopt;
  if (relation.signs.find_first_not_of(">g") == std::string::npos) {
    std::reverse(relation.sides.begin(), relation.sides.end());
    std::reverse(relation.signs.begin(), relation.signs.end());
    for (char& sign : relation.signs) sign = sign == '>' ? '<' : 'l';
  }
  if (relation.signs.find_first_not_of("<l") == std::string::npos)
    if (auto interval = interval_of(relation, depth)) return interval;
  return many(AnswerKind::kRelation, relation.sides, depth, relation.signs);
}

Answer parse_leaf(std::string_view text) {
  Answer out{.text = squeezed(text)};
  if (const auto decimal = canonical_decimal(text)) out.decimal = *decimal;
  out.expression = parse_expression(text);
  if (out.expression) out.kind = AnswerKind::kExpression;
  return out;
}

// 1:2 as a fraction, 1:2:3 part by part. What may be a time of day, 10:30, is a text.
std::optional<Answer> parse_ratio(std::string_view text, int depth) {
  const auto parts = split(text, ":");
  const auto is_part = [](std::string_view part) { return parse_expression(part).has_value(); };
  if (parts.size() < 2 || parts.size() > kMaxItems ||
      !std::all_of(parts.begin(), parts.end(), is_part))
    return std::nullopt;
  if (parts.size() > 2) return many(AnswerKind::kTuple, parts, depth, ":");
  if (parts[1].size() == 2 && is_digit(parts[1][0]) && is_digit(parts[1][1])) return std::nullopt;
  const auto bracketed = [](std::string_view part) { return "(" + std::string(part) + ")"; };
  return parse_leaf(bracketed(parts[0]) + "/" + bracketed(parts[1]));
}

std::optional<Answer> parse_plus_minus(std::string_view text, int depth) {
  constexpr std::string_view kSign = "\\pm";
  const std::size_t at = text.find(kSign);
  if (at == std::string_view::npos || text.find(kSign, at + 1) != std::string_view::npos)
    return std::nullopt;
  Answer out{.kind = AnswerKind::kList};
  for (const char sign : {'+', '-'}) {
    std::string one(text);
    one.replace(at, kSign.size(), 1, sign);
    out.items.push_back(parse(one, depth + 1));
  }
  return out;
}

Answer parse(std::string_view text, int depth) {
  text = trimmed(text);
  if (depth > kMaxLevels) return {.text = std::string(text)};
  if (auto parts = split(text, ","); parts.size() > 1 && parts.size() <= kMaxItems) {
    drop_names(parts);
    return many(AnswerKind::kList, parts, depth, "");
  }
  if (depth == 0) text = named(text).rest;
  if (const auto parts = split(text, "\\cup"); parts.size() > 1 && parts.size() <= kMaxItems)
    return many(AnswerKind::kUnion, parts, depth, "");
  if (auto answer = parse_relation(text, depth)) return std::move(*answer);
  if (const auto sides = split(text, "="); sides.size() == 2)
    return many(AnswerKind::kEquation, sides, depth, "");
  for (const auto& parse_kind : {parse_matrix, parse_brackets, parse_plus_minus, parse_ratio})
    if (auto answer = parse_kind(text, depth)) return std::move(*answer);
  return parse_leaf(text);
}

}  // namespace

int nesting(char c) {
  return c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
}

std::string squeezed(std::string_view text) {
  std::string out;
  bool command = false;  // \Pi is not \pi
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool between_digits =
        !out.empty() && is_digit(out.back()) && i + 1 < text.size() && is_digit(text[i + 1]);
    if (c == ' ' && !between_digits) continue;
    command = c == '\\' || (command && is_letter(c));
    out += command ? c : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::size_t n = out.size();
    if (n >= 3 && c == '}' && out[n - 3] == '{' && out[n - 2] != '\\')
      out.replace(n - 3, 3, 1, out[n - 2]);
  }
  // The letter of a choice: (C).
  if (out.size() == 3 && out.front() == '(' && out.back() == ')') out = out.substr(1, 1);
  return out;
}

Answer parse_answer(std::string_view text) {
  return parse(text, 0);
}

Answer parse_statement(std::string_view text) {
  return parse(text, 1);
}

}  // namespace neap::reward
