#include "reward/symbolic.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "reward/expression_parser.h"
#include "reward/latex.h"
#include "reward/number.h"

namespace neap::reward {
namespace {

constexpr std::size_t kMaxBytes = 4096;
constexpr std::size_t kMaxItems = 64;
constexpr int kMaxDepth = 16;

enum class Kind { kText, kExpression, kEquation, kTuple, kList, kUnion, kMatrix };

struct Value {
  Kind kind = Kind::kText;
  std::string text{};     // without spaces, lower case; of a tuple, its brackets
  std::string decimal{};  // canonical, where it is a plain number
  std::optional<Expression> expression{};
  std::vector<Value> items{};
};

bool opens(std::string_view text, std::size_t at) {
  return text[at] == '(' || text[at] == '[' || text[at] == '{';
}
bool closes(std::string_view text, std::size_t at) {
  return text[at] == ')' || text[at] == ']' || text[at] == '}';
}

// Splits at `separator` outside of brackets. "(a, b]" is one bracket.
std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> out;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (opens(text, i)) {
      ++depth;
    } else if (closes(text, i)) {
      --depth;
    } else if (depth == 0 && text.substr(i).starts_with(separator)) {
      out.push_back(trimmed(text.substr(start, i - start)));
      start = i + separator.size();
      i = start - 1;
    }
  }
  out.push_back(trimmed(text.substr(start)));
  return out;
}

// 1,234,567 -> 1234567 outside of brackets; 1, 2 and (1,234) are lists.
std::string without_thousands(std::string_view text) {
  std::string out;
  int depth = 0;
  const auto digits = [&](std::size_t from) {
    std::size_t end = from;
    while (end < text.size() && is_digit(text[end])) ++end;
    return end - from;
  };
  std::size_t run = 0;  // digits before
  bool grouped = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += opens(text, i) ? 1 : closes(text, i) ? -1 : 0;
    const bool group = depth == 0 && text[i] == ',' && digits(i + 1) == 3 &&
                       (grouped ? run == 3 : run >= 1 && run <= 3);
    if (!group) out += text[i];
    grouped = group || (grouped && is_digit(text[i]));
    run = is_digit(text[i]) ? run + 1 : 0;
  }
  return out;
}

// Without spaces, upper case and braces around one character: x_{1} is x_1.
std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::size_t n = out.size();
    if (n >= 3 && c == '}' && out[n - 3] == '{' && out[n - 2] != '\\')
      out.replace(n - 3, 3, 1, out[n - 2]);
  }
  // The letter of a choice: (C).
  if (out.size() == 3 && out.front() == '(' && out.back() == ')') out = out.substr(1, 1);
  return out;
}

Value parse(std::string_view text, int depth);

std::vector<Value> parse_all(const std::vector<std::string_view>& parts, int depth) {
  std::vector<Value> out;
  for (const std::string_view part : parts) out.push_back(parse(part, depth + 1));
  return out;
}

// The bracket that opens at the front closes at the end.
bool is_enclosed(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += opens(text, i) ? 1 : closes(text, i) ? -1 : 0;
    if (depth == 0) return i + 1 == text.size();
  }
  return false;
}

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > 12) return false;
  if (text.size() <= 2) return std::isalpha(static_cast<unsigned char>(text[0])) != 0;
  // f(x), x_1, y_{12}
  return std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         (text[1] == '(' || text[1] == '_');
}

// "x = 5" and "x \in [0, 1)": the name and what stands behind the sign.
struct Named {
  std::string_view name, rest;
};
Named named(std::string_view text) {
  for (const std::string_view sign : {"\\in ", "="}) {
    const auto sides = split(text, sign);
    if (sides.size() == 2 && is_name(sides[0])) return {sides[0], sides[1]};
  }
  return {"", text};
}

// Names go where they say nothing: all parts are values of one variable.
void drop_names(std::vector<std::string_view>& parts) {
  const std::string_view name = named(parts.front()).name;
  const auto is_same = [&](std::string_view part) { return named(part).name == name; };
  if (!std::all_of(parts.begin(), parts.end(), is_same)) return;
  for (std::string_view& part : parts) part = named(part).rest;
}

std::optional<Value> parse_matrix(std::string_view text, int depth) {
  constexpr std::string_view kBegin = "\\begin{";
  if (!text.starts_with(kBegin)) return std::nullopt;
  const std::size_t name_end = text.find('}');
  if (name_end == std::string_view::npos) return std::nullopt;
  const std::string_view name = text.substr(kBegin.size(), name_end - kBegin.size());
  const std::string tail = "\\end{" + std::string(name) + "}";
  if (name.find("matrix") == std::string_view::npos || !text.ends_with(tail)) return std::nullopt;
  Value out{.kind = Kind::kMatrix};
  const std::string_view body = text.substr(name_end + 1, text.size() - tail.size() - name_end - 1);
  for (const std::string_view row : split(body, "\\\\")) {
    if (row.empty()) continue;  // behind the last
    Value items{.kind = Kind::kTuple, .items = parse_all(split(row, "&"), depth)};
    out.items.push_back(std::move(items));
  }
  return out;
}

Value many(Kind kind, const std::vector<std::string_view>& parts, int depth, std::string brackets) {
  return {.kind = kind, .text = std::move(brackets), .items = parse_all(parts, depth)};
}

// Brackets around parts: {a, b}, (a, b), [a, b).
std::optional<Value> parse_brackets(std::string_view text, int depth) {
  if (text.starts_with("\\{") && text.ends_with("\\}") && text.size() >= 4)
    return many(Kind::kList, split(text.substr(2, text.size() - 4), ","), depth, "");
  if (text.size() < 3 || !opens(text, 0) || !is_enclosed(text)) return std::nullopt;
  const auto parts = split(text.substr(1, text.size() - 2), ",");
  if (parts.size() < 2 || parts.size() > kMaxItems) return std::nullopt;
  return many(Kind::kTuple, parts, depth, {text.front(), text.back()});
}

Value parse_leaf(std::string_view text) {
  Value out{.text = squeezed(text)};
  if (const auto decimal = canonical_decimal(text)) out.decimal = *decimal;
  out.expression = parse_expression(text);
  if (out.expression) out.kind = Kind::kExpression;
  return out;
}

Value parse(std::string_view text, int depth) {
  text = trimmed(text);
  if (depth > kMaxDepth) return {.text = std::string(text)};
  if (auto parts = split(text, ","); parts.size() > 1 && parts.size() <= kMaxItems) {
    drop_names(parts);
    return many(Kind::kList, parts, depth, "");
  }
  if (depth == 0) text = named(text).rest;
  if (const auto parts = split(text, "\\cup"); parts.size() > 1 && parts.size() <= kMaxItems)
    return many(Kind::kUnion, parts, depth, "");
  if (const auto sides = split(text, "="); sides.size() == 2)
    return many(Kind::kEquation, sides, depth, "");
  if (auto value = parse_matrix(text, depth)) return std::move(*value);
  if (auto value = parse_brackets(text, depth)) return std::move(*value);
  if (const std::size_t at = text.find("\\pm"); at != std::string_view::npos && depth < kMaxDepth) {
    Value out{.kind = Kind::kList};
    for (const char sign : {'+', '-'}) {
      std::string one(text);
      one.replace(at, 3, 1, sign);
      if (one.find("\\pm") != std::string::npos) break;
      out.items.push_back(parse(one, depth + 1));
    }
    if (out.items.size() == 2) return out;
  }
  return parse_leaf(text);
}

bool same(const Value& a, const Value& b);

bool same_in_order(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

bool same_in_any_order(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  std::vector<bool> taken(b.size());
  return std::all_of(a.begin(), a.end(), [&](const Value& x) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (taken[i] || !same(x, b[i])) continue;
      taken[i] = true;
      return true;
    }
    return false;
  });
}

bool same_equation(const Value& a, const Value& b) {
  if (same_in_order(a.items, b.items)) return true;
  const auto has_sides = [](const Value& v) {
    return v.items[0].expression.has_value() && v.items[1].expression.has_value();
  };
  if (!has_sides(a) || !has_sides(b)) return false;
  return same_equations(*a.items[0].expression, *a.items[1].expression, *b.items[0].expression,
                        *b.items[1].expression);
}

bool same(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kText:
      return a.text == b.text;
    case Kind::kExpression:
      // Two plain numbers are equal or not, however large.
      if (!a.decimal.empty() && !b.decimal.empty()) return a.decimal == b.decimal;
      return same_values(*a.expression, *b.expression);
    case Kind::kEquation:
      return same_equation(a, b);
    case Kind::kTuple:
      return a.text == b.text && same_in_order(a.items, b.items);
    case Kind::kMatrix:
      return same_in_order(a.items, b.items);
    case Kind::kList:
    case Kind::kUnion:
      return same_in_any_order(a.items, b.items);
  }
  return false;
}

std::string as_hundredths(const std::string& text) {
  return "(" + text + ")/100";
}

}  // namespace

bool symbolically_equal(std::string_view answer, std::string_view truth) {
  answer = trimmed(answer);
  truth = trimmed(truth);
  if (answer.empty() || truth.empty()) return false;
  if (answer == truth) return true;
  if (answer.size() > kMaxBytes || truth.size() > kMaxBytes) return false;
  const CleanedText a = clean_latex(answer);
  const CleanedText t = clean_latex(truth);
  if (a.text.empty() || t.text.empty()) return false;
  if (squeezed(a.text) == squeezed(t.text)) return true;
  const std::string plain_answer = without_thousands(a.text);
  const std::string plain_truth = without_thousands(t.text);
  const Value value = parse(plain_truth, 0);
  if (same(parse(plain_answer, 0), value)) return true;
  if (a.percent == t.percent) return false;
  return a.percent ? same(parse(as_hundredths(plain_answer), 0), value)
                   : same(parse(plain_answer, 0), parse(as_hundredths(plain_truth), 0));
}

}  // namespace neap::reward
