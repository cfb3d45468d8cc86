// Parses inequalities, intervals and sets of numbers.
#include <algorithm>
#include <utility>

#include "reward/answer_parser.h"
#include "reward/expression_parser.h"
#include "reward/names.h"
#include "reward/number.h"

namespace neap::reward::answer_parser {
namespace {

// Sides and signs outside of brackets. '<', 'l' and 'n' mean < \le \ne; '>' and 'g' mean > \ge.
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

// The interval of x < 5 or 1 < x \le 2. All signs have the same direction.
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

// The real numbers without these points, which are sorted.
Answer without_points(const std::vector<std::string_view>& points, int depth) {
  Answer out{.kind = AnswerKind::kUnion};
  std::string_view below = "-\\infty";
  for (const std::string_view point : points) {
    out.items.push_back(many(AnswerKind::kTuple, {below, point}, depth, "()"));
    below = point;
  }
  out.items.push_back(many(AnswerKind::kTuple, {below, "\\infty"}, depth, "()"));
  return out;
}

// Converts -x < 2 to x > -(2). Returns the texts of the new sides; the relation refers to them.
std::vector<std::string> negate(Relation& relation) {
  std::vector<std::string> texts;
  auto& sides = relation.sides;
  if (sides.size() != 2 || relation.signs == "n") return texts;
  const auto is_negative = [](std::string_view side) {
    return side.starts_with('-') && is_variable(trimmed(side.substr(1)));
  };
  const std::size_t at = is_negative(sides[0]) ? 0 : 1;
  if (!is_negative(sides[at]) || !is_constant(sides[1 - at])) return texts;
  texts.push_back("-(" + std::string(sides[1 - at]) + ")");
  sides[at] = trimmed(sides[at].substr(1));
  sides[1 - at] = texts.front();
  constexpr std::string_view kSigns = "<>lg", kTurned = "><gl";
  relation.signs[0] = kTurned[kSigns.find(relation.signs[0])];
  return texts;
}

}  // namespace

std::optional<Answer> parse_difference(std::string_view text, int depth) {
  constexpr std::string_view kAll = "(-\\infty,\\infty)";
  if (!text.starts_with(kAll)) return std::nullopt;
  std::string_view rest = trimmed(text.substr(kAll.size()));
  for (const std::string_view sign : {"\\setminus ", "-"}) {
    if (!rest.starts_with(sign)) continue;
    rest = trimmed(rest.substr(sign.size()));
    if (!rest.starts_with("\\{") || !rest.ends_with("\\}")) return std::nullopt;
    auto points = split(rest.substr(2, rest.size() - 4), ",");
    if (points.size() > kMaxItems || !std::all_of(points.begin(), points.end(), is_constant))
      return std::nullopt;
    const auto value = [](std::string_view point) {
      return parse_expression(point)->evaluate({}).value.real();
    };
    std::sort(points.begin(), points.end(),
              [&](std::string_view a, std::string_view b) { return value(a) < value(b); });
    return without_points(points, depth);
  }
  return std::nullopt;
}

std::optional<Answer> parse_relation(std::string_view text, int depth) {
  Relation relation = relation_of(text);
  const auto is_empty = [](std::string_view side) { return side.empty(); };
  if (relation.sides.size() < 2 || relation.sides.size() > kMaxItems ||
      std::any_of(relation.sides.begin(), relation.sides.end(), is_empty))
    return std::nullopt;
  const std::vector<std::string> negated = negate(relation);
  if (relation.signs.find_first_not_of(">g") == std::string::npos) {
    std::reverse(relation.sides.begin(), relation.sides.end());
    std::reverse(relation.signs.begin(), relation.signs.end());
    for (char& sign : relation.signs) sign = sign == '>' ? '<' : 'l';
  }
  for (const std::size_t at : {0U, 1U}) {
    const auto& sides = relation.sides;
    if (relation.signs != "n" || !is_variable(sides[at]) || !is_constant(sides[1 - at])) continue;
    Answer out = without_points({sides[1 - at]}, depth);
    out.name = sides[at];
    return out;
  }
  if (relation.signs.find_first_not_of("<l") == std::string::npos)
    if (auto interval = interval_of(relation, depth)) return interval;
  return many(AnswerKind::kRelation, relation.sides, depth, relation.signs);
}

std::optional<Answer> parse_both(std::string_view text, int depth) {
  const auto parts = split(text, "\\land ");
  if (parts.size() != 2) return std::nullopt;
  Answer a = parse(parts[0], depth + 1), b = parse(parts[1], depth + 1);
  const auto bounds = [](const Answer& each, std::size_t end) {
    return each.kind == AnswerKind::kTuple && !each.name.empty() && each.items.size() == 2 &&
           each.items[end].text == (end == 0 ? "-\\infty" : "\\infty");
  };
  if (a.name != b.name) return std::nullopt;
  if (bounds(a, 0) && bounds(b, 1)) std::swap(a, b);
  if (!bounds(a, 1) || !bounds(b, 0)) return std::nullopt;
  a.items[1] = std::move(b.items[1]);
  a.text[1] = b.text[1];
  return a;
}

}  // namespace neap::reward::answer_parser
