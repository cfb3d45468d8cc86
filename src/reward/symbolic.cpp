#include "reward/symbolic.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reward/answer.h"
#include "reward/latex.h"
#include "reward/number.h"

namespace neap::reward {
namespace {

constexpr std::size_t kMaxBytes = 4096;

// 1 234 567 -> 1234567, where that is all of the text.
std::string without_spaces(const std::string& text) {
  const std::size_t first = text.find(' ');
  if (first == 0 || first > 3 || text.find_first_not_of("0123456789 ") != std::string::npos)
    return text;
  for (std::size_t at = first; at < text.size(); at += 4)
    if (text[at] != ' ' || text.find(' ', at + 1) < at + 4 || at + 4 > text.size()) return text;
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), is_digit);
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
    depth += nesting(text[i]);
    const bool group = depth == 0 && text[i] == ',' && digits(i + 1) == 3 &&
                       (grouped ? run == 3 : run >= 1 && run <= 3);
    if (!group) out += text[i];
    grouped = group || (grouped && is_digit(text[i]));
    run = is_digit(text[i]) ? run + 1 : 0;
  }
  return out;
}

bool same(const Answer& a, const Answer& b);

bool same_in_order(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

bool same_in_any_order(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  if (a.size() != b.size()) return false;
  std::vector<bool> taken(b.size());
  return std::all_of(a.begin(), a.end(), [&](const Answer& x) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (taken[i] || !same(x, b[i])) continue;
      taken[i] = true;
      return true;
    }
    return false;
  });
}

// Of the sides of equations; false where one side is no expression.
bool have_same_solutions(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  const auto has_expression = [](const Answer& side) { return side.expression.has_value(); };
  return std::all_of(a.begin(), a.end(), has_expression) &&
         std::all_of(b.begin(), b.end(), has_expression) &&
         same_equations(*a[0].expression, *a[1].expression, *b[0].expression, *b[1].expression);
}

bool same(const Answer& a, const Answer& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case AnswerKind::kText:
      return a.text == b.text;
    case AnswerKind::kExpression:
      // Two plain numbers are equal or not, however large.
      if (!a.decimal.empty() && !b.decimal.empty()) return a.decimal == b.decimal;
      return same_values(*a.expression, *b.expression);
    case AnswerKind::kEquation:
      return same_in_order(a.items, b.items) || have_same_solutions(a.items, b.items);
    case AnswerKind::kRelation:
      return a.text == b.text && (a.text == "n" ? same_in_any_order(a.items, b.items)
                                                : same_in_order(a.items, b.items));
    case AnswerKind::kTuple:
      return a.text == b.text && (a.name.empty() || b.name.empty() || a.name == b.name) &&
             same_in_order(a.items, b.items);
    case AnswerKind::kMatrix:
      return same_in_order(a.items, b.items);
    case AnswerKind::kList:
    case AnswerKind::kUnion:
      return same_in_any_order(a.items, b.items);
  }
  return false;
}

// y = 2x + 1 and 2x - y = -1. An equation of one variable is to be solved.
bool same_curve(const Answer& a, const Answer& b) {
  if (a.kind != AnswerKind::kEquation || b.kind != AnswerKind::kEquation) return false;
  std::map<std::string, double> variables;
  for (const Answer& side : a.items)
    if (side.expression) variables.merge(side.expression->variables());
  return variables.size() > 1 && have_same_solutions(a.items, b.items);
}

std::string as_hundredths(const std::string& text) {
  return "(" + text + ")/100";
}

// A text in all the ways in which it is compared.
struct Reading {
  std::string squeezed_text;
  Answer answer, statement;
  std::string plain;
  bool percent = false;

  explicit Reading(std::string_view text) {
    const CleanedText cleaned = clean_latex(text);
    if (cleaned.text.empty()) return;
    squeezed_text = squeezed(cleaned.text);
    plain = without_thousands(without_spaces(cleaned.text));
    answer = parse_answer(plain);
    statement = parse_statement(plain);
    percent = cleaned.percent;
  }
  [[nodiscard]] bool empty() const { return squeezed_text.empty(); }
  [[nodiscard]] Answer hundredths() const { return parse_answer(as_hundredths(plain)); }
};

bool same(const Reading& a, const Reading& t) {
  if (a.empty() || t.empty()) return false;
  if (a.squeezed_text == t.squeezed_text) return true;
  if (same(a.answer, t.answer) || same_curve(a.statement, t.statement)) return true;
  if (a.percent == t.percent) return false;
  return a.percent ? same(a.hundredths(), t.answer) : same(a.answer, t.hundredths());
}

}  // namespace

struct SymbolicTruth::Impl {
  std::string text;
  std::optional<Reading> reading;  // none of a text that is too long
};

SymbolicTruth::SymbolicTruth(std::string_view truth) {
  auto made = std::make_unique<Impl>();
  made->text = trimmed(truth);
  if (made->text.size() <= kMaxBytes) made->reading.emplace(made->text);
  impl_ = std::move(made);
}
SymbolicTruth::SymbolicTruth(SymbolicTruth&&) noexcept = default;
SymbolicTruth& SymbolicTruth::operator=(SymbolicTruth&&) noexcept = default;
SymbolicTruth::~SymbolicTruth() = default;

bool SymbolicTruth::equals(std::string_view answer) const {
  answer = trimmed(answer);
  if (answer.empty() || impl_->text.empty()) return false;
  if (answer == impl_->text) return true;
  return impl_->reading && answer.size() <= kMaxBytes && same(Reading(answer), *impl_->reading);
}

bool symbolically_equal(std::string_view answer, std::string_view truth) {
  return SymbolicTruth(truth).equals(answer);
}

}  // namespace neap::reward
