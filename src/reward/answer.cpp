#include "reward/answer.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "reward/answer_parser.h"
#include "reward/expression_parser.h"
#include "reward/names.h"
#include "reward/number.h"

namespace neap::reward {
namespace answer_parser {
namespace {

constexpr int kMaxLevels = 16;
constexpr std::string_view kPlusMinus = "\\pm";

// Whether the opening bracket at the front closes at the end.
bool is_enclosed(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += nesting(text[i]);
    if (depth == 0) return i + 1 == text.size();
  }
  return false;
}

// The name and the other side of "x = 5", "5 = x" or "x \in [0, 1)".
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

// Removes names if all parts are values of one variable. Only some parts may have the name.
void drop_names(std::vector<std::string_view>& parts) {
  std::string_view name;
  for (const std::string_view part : parts)
    if (name.empty()) name = named(part).name;
  const auto is_same = [&](std::string_view part) {
    const std::string_view own = named(part).name;
    return own == name || (own.empty() && part.find('=') == std::string_view::npos);
  };
  if (name.empty() || !std::all_of(parts.begin(), parts.end(), is_same)) return;
  for (std::string_view& part : parts) part = named(part).rest;
}

// Reads x = 1, y = 2. Roots x_1 = 1, x_2 = 2 of one variable become a list.
std::optional<Answer> parse_assignment(const std::vector<std::string_view>& parts, int depth) {
  Answer out{.kind = AnswerKind::kAssignment};
  bool roots = true;
  for (const std::string_view part : parts) {
    std::string name = squeezed(named(part).name);
    if (name.empty() || std::find(out.names.begin(), out.names.end(), name) != out.names.end())
      return std::nullopt;
    out.names.push_back(std::move(name));
    roots = roots && out.names.back().find('_') != std::string::npos &&
            base_of_name(out.names.back()) == base_of_name(out.names.front());
  }
  for (const std::string_view part : parts) out.items.push_back(parse(named(part).rest, depth + 1));
  if (roots) out.kind = AnswerKind::kList;
  return out;
}

// The body of \begin{...}\end{...}, which may be inside brackets.
std::optional<std::string_view> matrix_body(std::string_view text) {
  constexpr std::string_view kBegin = "\\begin{";
  if (text.size() > 2 && nesting(text[0]) == 1 && is_enclosed(text))
    text = trimmed(text.substr(1, text.size() - 2));
  const std::size_t name_end = text.find('}');
  if (!text.starts_with(kBegin) || name_end == std::string_view::npos) return std::nullopt;
  const std::string_view name = text.substr(kBegin.size(), name_end - kBegin.size());
  const std::string tail = "\\end{" + std::string(name) + "}";
  // vmatrix is a determinant, so it is not a matrix.
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
    if (row.empty()) continue;  // an empty row after the last separator
    out.items.push_back(many(AnswerKind::kTuple, split(row, "&"), depth, ""));
  }
  return out;
}

// Reads brackets with parts: {a, b}, (a, b), [a, b).
std::optional<Answer> parse_brackets(std::string_view text, int depth) {
  const bool escaped = text.starts_with("\\{") && text.ends_with("\\}") && text.size() >= 4;
  if (!escaped && (text.size() < 3 || nesting(text[0]) != 1 || !is_enclosed(text)))
    return std::nullopt;
  const std::size_t width = escaped ? 2 : 1;
  const auto parts = split(text.substr(width, text.size() - 2 * width), ",");
  if (parts.size() > kMaxItems) return std::nullopt;
  if (escaped && parts.size() == 1) {  // {x : x < 5}, or a set of one element
    for (const std::string_view sign : {":", "\\mid", "|"}) {
      const auto sides = split(parts[0], sign);
      if (sides.size() == 2 && is_name(sides[0])) return parse(sides[1], depth + 1);
    }
    if (parts[0] != "\\emptyset") return parse(parts[0], depth + 1);
  }
  if (parts.size() < 2) return std::nullopt;
  if (escaped || text.front() == '{') return many(AnswerKind::kList, parts, depth, "");
  Answer out = many(AnswerKind::kTuple, parts, depth, {text.front(), text.back()});
  const auto is_row = [&](const Answer& item) {
    return item.kind == AnswerKind::kTuple && item.text == "[]" && out.text == "[]" &&
           item.items.size() == out.items.front().items.size();
  };
  if (std::all_of(out.items.begin(), out.items.end(), is_row)) {  // rows: [[1, 2], [3, 4]]
    out = {.kind = AnswerKind::kMatrix, .items = std::move(out.items)};
    for (Answer& row : out.items) row.text.clear();
  }
  return out;
}

// Converts (204)_{5} to 204_5. Empty if the text is not a numeral with a base.
std::string numeral_of(std::string_view text) {
  const std::size_t mark = text.find('_');
  if (mark == std::string_view::npos) return {};
  std::string out;
  for (const char c : text) {
    if (nesting(c) != 0) continue;
    if (!is_digit(c) && !(is_letter(c) && out.find('_') == std::string::npos) && c != '_')
      return {};
    out += c;
  }
  const bool digits = is_digit(out.front()) && is_digit(out.back());
  return digits && std::count(out.begin(), out.end(), '_') == 1 ? out : std::string();
}

Answer parse_leaf(std::string_view text) {
  Answer out{.text = squeezed(text)};
  if (const auto decimal = canonical_decimal(text)) out.decimal = *decimal;
  out.expression = parse_expression(text);
  if (out.expression) {
    out.kind = AnswerKind::kExpression;
    if (text.find("log") != std::string_view::npos)
      out.common = parse_expression(text, LogBase::kTen);
  } else if (std::string numeral = numeral_of(out.text); !numeral.empty()) {
    out.text = std::move(numeral);
  }
  return out;
}

// Reads 1:2 as a fraction and 1:2:3 as parts. A possible time of day, such as 10:30, stays text.
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
  const std::size_t at = text.find(kPlusMinus);
  if (at == std::string_view::npos || text.find(kPlusMinus, at + 1) != std::string_view::npos)
    return std::nullopt;
  Answer out{.kind = AnswerKind::kList, .text = std::string(kPlusMinus)};
  for (const char sign : {'+', '-'}) {
    std::string one(text);
    one.replace(at, kPlusMinus.size(), 1, sign);
    out.items.push_back(parse(one, depth + 1));
  }
  return out;
}

// Whether the decimal equals the other value when rounded: 16/81 \approx 0.198.
bool is_rounded(const Answer& exact, std::string_view text) {
  const auto decimal = canonical_decimal(text);
  if (!decimal || !exact.expression || !exact.expression->variables().empty()) return false;
  const std::complex<double> value = exact.expression->evaluate({}).value;
  const std::size_t point = text.find('.');
  const double places =
      point == std::string_view::npos ? 0 : static_cast<double>(text.size() - point - 1);
  return value.imag() == 0 && std::abs(value.real() - std::strtod(decimal->c_str(), nullptr)) <=
                                  0.5001 * std::pow(10.0, -places);
}

// If the sides of a = b = c are equal, the answer is c, also in "n = a = b = c". The answer of a
// \approx 0.5 is a. If the sides contradict each other, the answer is text.
std::optional<Answer> parse_chain(std::string_view text, int depth) {
  std::vector<std::pair<std::string_view, bool>> sides;  // second: \approx precedes it
  bool approximate = false;
  for (const std::string_view exact : split(text, "=")) {
    bool first = true;
    for (const std::string_view side : split(exact, "\\approx ")) {
      sides.emplace_back(side, !first);
      approximate = approximate || !first;
      first = false;
    }
  }
  if (sides.size() < 2 || sides.size() > kMaxItems) return std::nullopt;
  const bool name = is_name(sides.front().first);
  if (sides.size() == 2 && name && !approximate) return std::nullopt;  // named() handles it
  if (name || sides.front().first.empty()) sides.erase(sides.begin());
  Answer last = parse(sides.front().first, depth + 1);
  for (std::size_t i = 1; i < sides.size(); ++i) {
    const auto& [side, rounded] = sides[i];
    if (rounded && is_rounded(last, side)) continue;
    Answer next = parse(side, depth + 1);
    if (rounded || !next.expression || !last.expression ||
        !same_values(*last.expression, *next.expression)) {
      if (sides.size() == 2 && !approximate && !name) return std::nullopt;  // an equation
      return Answer{.text = squeezed(text)};
    }
    last = std::move(next);
  }
  return last;
}

}  // namespace

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

Answer many(AnswerKind kind, const std::vector<std::string_view>& parts, int depth,
            std::string text) {
  Answer out{.kind = kind, .text = std::move(text)};
  for (const std::string_view part : parts) {
    Answer item = parse(part, depth + 1);
    if (kind == AnswerKind::kList && item.kind == AnswerKind::kList && item.text == kPlusMinus) {
      std::move(item.items.begin(), item.items.end(), std::back_inserter(out.items));
    } else {
      out.items.push_back(std::move(item));
    }
  }
  return out;
}

Answer parse(std::string_view text, int depth) {
  text = trimmed(text);
  if (depth > kMaxLevels) return {.text = std::string(text)};
  if (auto parts = split(text, ","); parts.size() > 1 && parts.size() <= kMaxItems) {
    if (auto assignment = parse_assignment(parts, depth)) return std::move(*assignment);
    drop_names(parts);
    return many(AnswerKind::kList, parts, depth, "");
  }
  std::string name;
  if (depth == 0) {
    if (auto chain = parse_chain(text, depth)) return std::move(*chain);
    const Named all = named(text);
    name = all.name;
    text = all.rest;
    if (const std::size_t comma = name.empty() ? std::string::npos : text.find(',');
        comma != std::string::npos && split(text, ",").size() > 1)
      return parse(text, depth + 1);
  }
  const auto parsed = [&]() -> Answer {
    if (const auto parts = split(text, "\\cup"); parts.size() > 1 && parts.size() <= kMaxItems)
      return many(AnswerKind::kUnion, parts, depth, "");
    for (const auto& parse_kind : {parse_both, parse_difference, parse_relation})
      if (auto answer = parse_kind(text, depth)) return std::move(*answer);
    if (const auto sides = split(text, "="); sides.size() == 2)
      return many(AnswerKind::kEquation, sides, depth, "");
    for (const auto& parse_kind : {parse_matrix, parse_brackets, parse_plus_minus, parse_ratio})
      if (auto answer = parse_kind(text, depth)) return std::move(*answer);
    return parse_leaf(text);
  };
  Answer out = parsed();
  if (out.name.empty()) out.name = name;
  return out;
}

}  // namespace answer_parser

int nesting(char c) {
  return c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
}

std::string squeezed(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool between_digits =
        !out.empty() && is_digit(out.back()) && i + 1 < text.size() && is_digit(text[i + 1]);
    if (c == ' ' && !between_digits) continue;
    out += c;
    const std::size_t n = out.size();
    if (n >= 3 && c == '}' && out[n - 3] == '{' && out[n - 2] != '\\')
      out.replace(n - 3, 3, 1, out[n - 2]);
  }
  // The letter of a multiple-choice answer: (C).
  if (out.size() == 3 && out.front() == '(' && out.back() == ')') out = out.substr(1, 1);
  return out;
}

Answer parse_answer(std::string_view text) {
  return answer_parser::parse(text, 0);
}

Answer parse_statement(std::string_view text) {
  return answer_parser::parse(text, 1);
}

}  // namespace neap::reward
