#include "reward/symbolic.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/read_limits.h"
#include "reward/answer.h"
#include "reward/latex.h"
#include "reward/number.h"
#include "reward/units.h"

namespace neap::reward {
namespace {

[[nodiscard]] bool too_long(std::string_view text) {
  return Bytes(text.size()) > read_limits::kAnswer.part;
}

// Converts 1 234 567 to 1234567 if it is the whole text.
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

// Converts 1,234,567 to 1234567 outside of brackets. These stay lists: 1, 2 and 27,54,108 and 0,245
// and (1,234).
std::string without_thousands(std::string_view text) {
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    depth += nesting(text[i]);
    if (depth != 0 || !is_digit(text[i])) {
      out += text[i++];
      continue;
    }
    // Digits separated by single commas. Either all groups have three digits, or none counts as a
    // group.
    std::size_t end = i, run = 0;
    bool first = true, groups = true;
    for (; end < text.size(); ++end) {
      if (is_digit(text[end])) {
        ++run;
        continue;
      }
      const bool next = text[end] == ',' && end + 1 < text.size() && is_digit(text[end + 1]);
      groups = groups && (first ? !next || run <= 3 : run == 3);
      if (!next) break;
      first = false;
      run = 0;
    }
    if (end == text.size()) groups = groups && (first || run == 3);
    groups = groups && (first || text[i] != '0');
    for (; i < end; ++i)
      if (is_digit(text[i]) || !groups) out += text[i];
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

// Compares the sides of equations. False if a side is not an expression.
bool have_same_solutions(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  const auto has_expression = [](const Answer& side) { return side.expression.has_value(); };
  return std::all_of(a.begin(), a.end(), has_expression) &&
         std::all_of(b.begin(), b.end(), has_expression) &&
         same_equations(*a[0].expression, *a[1].expression, *b[0].expression, *b[1].expression);
}

// Ignores the case of texts with words, but not of mathematics.
bool same_words(const std::string& a, const std::string& b) {
  if (a == b) return true;
  if (a.size() != b.size() || lower_case(a) != lower_case(b)) return false;
  std::size_t run = 0, longest = 0;
  bool command = false;
  for (const char c : a) {
    command = c == '\\' || (command && is_letter(c));
    run = is_letter(c) && !command ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest > 2 || (longest == 2 && lower_case(a) == "no");
}

// Compares x = 1, y = 2 with (1, 2), in the order of the names, or with 1, 2, in the order of the
// text.
bool same_assignment(const Answer& a, const Answer& b) {
  if (b.kind == AnswerKind::kList) return b.text.empty() && same_in_order(a.items, b.items);
  std::vector<std::size_t> order(a.items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return a.names[x] < a.names[y]; });
  if (b.kind == AnswerKind::kTuple)
    return b.text == "()" && a.items.size() == b.items.size() &&
           std::equal(order.begin(), order.end(), b.items.begin(),
                      [&](std::size_t x, const Answer& item) { return same(a.items[x], item); });
  if (b.kind != AnswerKind::kAssignment || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.names.size(); ++i) {
    const auto at = std::find(b.names.begin(), b.names.end(), a.names[i]);
    if (at == b.names.end() ||
        !same(a.items[i], b.items[static_cast<std::size_t>(at - b.names.begin())]))
      return false;
  }
  return true;
}

// y = 5 differs from x = 5. Longer names only repeat the question.
bool contradict(const std::string& a, const std::string& b) {
  return a.size() == 1 && b.size() == 1 && a != b;
}

// A whole number whose neighbours are equal within the rounding that same_values() allows.
bool is_long_whole_number(const std::string& decimal) {
  constexpr std::size_t kDigits = 12;
  const std::size_t last = decimal.find_last_not_of('0');
  return decimal.find('.') == std::string::npos && last != std::string::npos && last >= kDigits;
}

bool same(const Answer& a, const Answer& b) {
  if (a.kind == AnswerKind::kAssignment) return same_assignment(a, b);
  if (b.kind == AnswerKind::kAssignment) return same_assignment(b, a);
  if (a.kind != b.kind) return false;
  if (a.kind != AnswerKind::kExpression && contradict(a.name, b.name)) return false;
  switch (a.kind) {
    case AnswerKind::kText:
      return same_words(a.text, b.text);
    case AnswerKind::kExpression:
      return same_expression(a, b);
    case AnswerKind::kAssignment:
      return false;
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

// Whether equations describe the same curve: y = 2x + 1 and 2x - y = -1. An equation in one
// variable must be solved.
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

// A text in all forms used for comparison.
struct Reading {
  std::string squeezed_text;
  Answer answer, statement;
  std::string plain;
  CleanedText cleaned;

  explicit Reading(std::string_view text) : cleaned(clean_latex(text)) {
    if (cleaned.text.empty()) return;
    squeezed_text = squeezed(cleaned.text);
    plain = without_thousands(without_spaces(cleaned.text));
    answer = parse_answer(plain);
    if (plain.find('=') != std::string::npos) statement = parse_statement(plain);
  }
  [[nodiscard]] bool empty() const { return squeezed_text.empty(); }
};

// Whether the text after a choice continues an expression or a list, so that it is not the value of
// the choice.
bool goes_on(std::string_view rest) {
  const std::string_view value = trimmed(rest);
  constexpr auto kOperators =
      std::to_array<std::string_view>({"\\pm", "\\mp", "\\cdot", "\\times", "\\div", "\\le ",
                                       "\\ge ", "\\ne ", "\\cup", "\\cap", "\\land", "\\approx"});
  if (value.empty()) return false;
  if (value[0] == '-') return value.data() == rest.data() || value.substr(1).starts_with(' ');
  return std::string_view("+*/^_=,<>!|&'").find(value[0]) != std::string_view::npos ||
         std::any_of(kOperators.begin(), kOperators.end(),
                     [&](std::string_view sign) { return value.starts_with(sign); });
}

// Returns C for "C", "(C)", "(C) 12", "C. 12" and "Option C"; 0 if the text is not a choice.
char choice_of(std::string_view text) {
  for (const std::string_view word : {"Option ", "option ", "Choice ", "choice "})
    if (text.starts_with(word)) text.remove_prefix(word.size());
  text = trimmed(text);
  const bool bracket = text.starts_with('(');
  if (bracket) text.remove_prefix(1);
  if (text.empty() || text[0] < 'A' || text[0] > 'J') return 0;
  const char letter = text[0];
  const std::string_view rest = text.substr(1);
  if (!bracket && rest.empty()) return letter;
  if (rest.empty() ||
      std::string_view(bracket ? ")" : ".:)").find(rest[0]) == std::string_view::npos)
    return 0;
  if (goes_on(rest.substr(1))) return 0;
  // Reject a second choice: "(A) or (B)", "A. B."
  const std::string tail = std::string(rest.substr(1)) + ".";
  for (std::size_t i = 0; i + 1 < tail.size(); ++i)
    if (tail[i] >= 'A' && tail[i] <= 'J' && (i == 0 || !is_letter(tail[i - 1])) &&
        (tail[i + 1] == ')' || tail[i + 1] == '.' || tail[i + 1] == ',' || tail[i + 1] == ':'))
      return 0;
  return letter;
}

// Whether the text is "b" for the choice B.
bool is_small_choice(const std::string& small, const std::string& choice) {
  return choice.size() == 1 && choice[0] >= 'A' && choice[0] <= 'D' && small == lower_case(choice);
}

// Compares 1.5 m and 150 cm. nullopt if the units do not decide.
std::optional<bool> same_measure(const Reading& a, const Reading& t) {
  const auto of_a = size_of_unit(a.cleaned.unit);
  const auto of_t = size_of_unit(t.cleaned.unit);
  if (!of_a || !of_t || *of_a == *of_t) return std::nullopt;
  if (of_a->kind != of_t->kind) return false;
  if (of_a->power != of_t->power)  // "15 cm" for 15 cm^2 lacks the power
    return of_a->factor == of_t->factor ? std::nullopt : std::optional(false);
  const auto in_first = [](const Reading& reading, const UnitSize& size) {
    return parse_answer("(" + reading.plain + ")*(" + std::string(size.factor) + ")^" +
                        std::to_string(size.power));
  };
  return same(in_first(a, *of_a), in_first(t, *of_t));
}

// Removes the unit from "0.0112 g" if the other answer names g as the unit.
std::optional<Answer> without_unit(const Reading& reading, const std::string& unit) {
  const std::string& text = reading.plain;
  if (unit.empty() || !reading.cleaned.unit.empty() || !text.ends_with(unit)) return std::nullopt;
  const std::string_view number =
      trimmed(std::string_view(text).substr(0, text.size() - unit.size()));
  if (!canonical_decimal(number)) return std::nullopt;
  return parse_answer(number);
}

// 27 modulo 5 differs from 27, and 9 modulo 11 from 9 modulo 12.
bool same_modulus(const Reading& a, const Reading& t) {
  const std::string& one = a.cleaned.modulus;
  const std::string& other = t.cleaned.modulus;
  if (one.empty() && other.empty()) return true;
  if (!one.empty() && !other.empty()) return one == other;
  const Reading& reduced = one.empty() ? t : a;
  return std::strtod(reduced.answer.decimal.c_str(), nullptr) <
         std::strtod(reduced.cleaned.modulus.c_str(), nullptr);
}

bool same(const Reading& a, const Reading& t) {
  if (a.empty() || t.empty()) return false;
  if (!same_modulus(a, t)) return false;
  if (const auto measured = same_measure(a, t)) return *measured;
  if (same_words(a.squeezed_text, t.squeezed_text)) return true;
  if (is_small_choice(a.squeezed_text, t.squeezed_text) ||
      is_small_choice(t.squeezed_text, a.squeezed_text))
    return true;
  if (const char choice = choice_of(t.cleaned.text);
      choice != 0 && (a.squeezed_text.size() == 1 || t.squeezed_text.size() == 1))
    if (choice == choice_of(a.cleaned.text)) return true;
  if (same(a.answer, t.answer) || same_curve(a.statement, t.statement)) return true;
  if (const auto number = without_unit(a, t.cleaned.unit)) return same(*number, t.answer);
  if (const auto number = without_unit(t, a.cleaned.unit)) return same(a.answer, *number);
  if (a.cleaned.percent == t.cleaned.percent) return false;
  return a.cleaned.percent ? same(parse_answer(as_hundredths(a.plain)), t.answer)
                           : same(a.answer, parse_answer(as_hundredths(t.plain)));
}

}  // namespace

bool same_expression(const Answer& a, const Answer& b) {
  if (contradict(a.name, b.name)) return false;
  // Two plain numbers of any size are compared exactly.
  if (!a.decimal.empty() && !b.decimal.empty()) return a.decimal == b.decimal;
  if (is_long_whole_number(a.decimal) || is_long_whole_number(b.decimal))
    return exactly_same(*a.expression, *b.expression).value_or(false);
  if (same_values(*a.expression, *b.expression)) return true;
  if (!a.common && !b.common) return false;
  return same_values(a.common ? *a.common : *a.expression, b.common ? *b.common : *b.expression);
}

struct SymbolicTruth::Impl {
  std::string text;
  std::optional<Reading> reading;  // nullopt if the text is too long
};

SymbolicTruth::SymbolicTruth(std::string_view truth) {
  auto made = std::make_unique<Impl>();
  made->text = trimmed(truth);
  if (!too_long(made->text)) made->reading.emplace(made->text);
  impl_ = std::move(made);
}
SymbolicTruth::SymbolicTruth(SymbolicTruth&&) noexcept = default;
SymbolicTruth& SymbolicTruth::operator=(SymbolicTruth&&) noexcept = default;
SymbolicTruth::~SymbolicTruth() = default;

bool SymbolicTruth::equals(std::string_view answer) const {
  answer = trimmed(answer);
  if (answer.empty() || impl_->text.empty()) return false;
  if (answer == impl_->text) return true;
  return impl_->reading && !too_long(answer) && same(Reading(answer), *impl_->reading);
}

std::optional<ReadAnswer> read_answer(std::string_view text) {
  if (too_long(text)) return std::nullopt;
  Reading reading(trimmed(text));
  if (reading.empty()) return std::nullopt;
  return ReadAnswer{std::move(reading.answer), size_of_unit(reading.cleaned.unit)};
}

}  // namespace neap::reward
