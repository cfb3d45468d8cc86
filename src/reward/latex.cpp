#include "reward/latex.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "reward/answer.h"
#include "reward/latex_symbols.h"
#include "reward/number.h"
#include "reward/units.h"

namespace neap::reward {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

// The argument of these commands is prose.
constexpr auto kTextCommands =
    std::to_array<std::string_view>({"\\text", "\\textbf", "\\textit", "\\textrm", "\\textsf",
                                     "\\texttt", "\\textnormal", "\\emph", "\\mbox", "\\hbox"});
// The argument of these commands is mathematics, in which a letter is a variable or a constant.
constexpr auto kStyleCommands = std::to_array<std::string_view>(
    {"\\mathrm", "\\mathbf", "\\mathit", "\\mathsf", "\\operatorname", "\\boldsymbol", "\\bold",
     "\\bm", "\\underline", "\\boxed", "\\fbox"});
constexpr auto kDegrees =
    std::to_array<std::string_view>({"^{\\degree }", "^{ \\degree }", "^\\degree ", "\\degree "});

void remove_all(std::string& text, std::string_view part, std::string_view by = "") {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size())
    text.replace(at, part.size(), by);
}

// The brace that closes the one before `from`; npos if none does.
std::size_t closing_brace(std::string_view text, std::size_t from) {
  int depth = 1;
  for (std::size_t i = from; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return i;
  }
  return std::string_view::npos;
}

// Whether a unit can follow the text.
bool ends_a_number(std::string_view text) {
  text = trimmed(text);
  return !text.empty() && (is_digit(text.back()) || text.back() == '}' || text.back() == ')' ||
                           text.ends_with("\\pi"));
}

// Whether `inner` at `at` makes an ordinal, as in 50^\text{th}, and not a power.
bool is_ordinal(std::string_view text, std::size_t at, std::string_view inner) {
  constexpr std::array<std::string_view, 4> kEndings = {"st", "nd", "rd", "th"};
  return (text.substr(0, at).ends_with('^') || text.substr(0, at).ends_with("^{")) &&
         std::find(kEndings.begin(), kEndings.end(), inner) != kEndings.end();
}

// Removes the power of a unit at `at` (\text{cm}^2) and returns it.
std::string erase_power(std::string& text, std::size_t at) {
  if (at >= text.size() || text[at] != '^') return {};
  std::size_t end = at + 1;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '{' || text[end] == '}')) ++end;
  std::string power = text.substr(at, end - at);
  text.erase(at, end - at);
  return power;
}

// Replacement for a command around `whole`. Sets `unit` if the content is a unit after a number.
std::string opened(std::string_view whole, bool prose, bool behind_number, std::string& unit) {
  const std::string_view inner = trimmed(whole);
  if (behind_number && (prose ? is_unit(inner, true) : is_unit_symbol(inner))) {
    unit = inner;
    return {};
  }
  const bool word = std::count_if(inner.begin(), inner.end(), is_letter) > 1 &&
                    std::all_of(inner.begin(), inner.end(), is_letter);
  if (prose ? inner == "and" || inner == "or" : word) return format(" {} ", inner);
  return std::string(prose ? whole : inner);
}

// Replaces \text{...} and similar commands. A unit after a number is removed; other content stays.
void open_commands(std::string& text, std::string_view name, bool prose, std::string& unit) {
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    const std::size_t open = std::min(text.find_first_not_of(' ', at + name.size()), text.size());
    if (at + name.size() < text.size() && is_letter(text[at + name.size()])) {
      at += name.size();  // a different command
      continue;
    }
    if (open == text.size() || text[open] != '{') {  // an argument without braces: \mathbf i
      text.erase(at, open - at);
      continue;
    }
    const std::size_t close = closing_brace(text, open + 1);
    if (close == std::string::npos) return;
    const std::string whole = text.substr(open + 1, close - open - 1);
    if (is_ordinal(text, at, trimmed(whole))) {
      const std::size_t power = text.rfind('^', at);
      text.erase(power, close + 1 - power + (text[at - 1] == '{' ? 1 : 0));
      at = power;
      continue;
    }
    const bool behind_number = ends_a_number(std::string_view(text).substr(0, at));
    std::string found;
    text.replace(at, close + 1 - at, opened(whole, prose, behind_number, found));
    if (found.empty()) continue;
    unit = found + erase_power(text, at);
  }
}

std::string open_texts(std::string& text) {
  std::string unit;
  for (const std::string_view name : kTextCommands) open_commands(text, name, true, unit);
  for (const std::string_view name : kStyleCommands) open_commands(text, name, false, unit);
  return unit;
}

// Replaces "and" and "or" between parts by commas. Between inequalities "or" means union.
void join_parts(std::string& text) {
  const bool inequalities = text.find_first_of("<>") != std::string::npos ||
                            text.find("\\le ") != std::string::npos ||
                            text.find("\\ge ") != std::string::npos;
  remove_all(text, " and ", inequalities ? "\\land " : ", ");
  remove_all(text, " or ", inequalities ? "\\cup " : ", ");
  std::replace(text.begin(), text.end(), ';', ',');
  for (const std::string_view twice : {",,", ", ,", ",  ,"})
    for (std::size_t at = 0; (at = text.find(twice, at)) != std::string::npos;)
      text.replace(at, twice.size(), ",");
}

// Removes degree signs, except in trigonometric functions, which need radians.
void replace_degrees(std::string& text) {
  constexpr std::array<std::string_view, 6> kOfAngles = {"sin", "cos", "tan", "sec", "csc", "cot"};
  const bool radians = std::any_of(kOfAngles.begin(), kOfAngles.end(), [&](std::string_view name) {
    return text.find(name) != std::string::npos;
  });
  for (const std::string_view degree : kDegrees)
    remove_all(text, degree, radians ? " \\degree " : "");
}

// Joins grouped digits: 11,\! 111 is one number.
void tighten_groups(std::string& text) {
  constexpr std::string_view kTight = ",\\!";
  for (std::size_t at = 0; (at = text.find(kTight, at)) != std::string::npos; ++at) {
    const std::size_t next = std::min(text.find_first_not_of(' ', at + kTight.size()), text.size());
    text.erase(at + 1, next - at - 1);
  }
}

// Removes \textcolor{blue}{5} and \color{blue}, and keeps the content.
void remove_colors(std::string& text) {
  for (const std::string_view name : {"\\textcolor{", "\\color{"})
    for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
      const std::size_t close = text.find('}', at);
      if (close == std::string::npos) return;
      text.erase(at, close + 1 - at);
    }
}

// Replaces a typed U between intervals, as in (0, 1) U (2, 3), by a union.
void join_unions(std::string& text) {
  for (std::size_t at = 0; (at = text.find('U', at)) != std::string::npos; ++at) {
    const std::string_view before = trimmed(std::string_view(text).substr(0, at));
    const std::string_view behind = trimmed(std::string_view(text).substr(at + 1));
    const bool set =
        behind.starts_with('(') || behind.starts_with('[') || behind.starts_with("\\{");
    if (!before.empty() && nesting(before.back()) == -1 && set) text.replace(at, 1, "\\cup ");
  }
}

void strip_end(std::string& text) {
  text = std::string(trimmed(text));
  while (text.ends_with('.') || text.ends_with(',') || text.ends_with(';') ||
         text.ends_with('\\')) {
    text.pop_back();
    text = std::string(trimmed(text));
  }
}

// Removes \pmod or mod from the end of `text` and returns its argument.
std::string take_modulus(std::string& text) {
  for (const std::string_view mark :
       {"(\\pmod", "\\pmod", "(\\bmod", "\\bmod", "(\\mod", "\\mod", "(mod ", " mod "}) {
    const std::size_t at = text.rfind(mark);
    if (at == std::string::npos || at == 0) continue;
    std::string number;
    for (const char c : text.substr(at + mark.size())) {
      if (is_digit(c))
        number += c;
      else if (c != ' ' && nesting(c) == 0)
        return {};
    }
    if (number.empty()) return {};
    text.resize(at);
    strip_end(text);
    return number;
  }
  return {};
}

// Replaces a text that is only a word for a number or a set, with or without article.
std::string in_symbols(const std::string& text) {
  constexpr auto kWords = std::to_array<Replacement>({{"zero", "0"},
                                                      {"one", "1"},
                                                      {"two", "2"},
                                                      {"three", "3"},
                                                      {"four", "4"},
                                                      {"five", "5"},
                                                      {"six", "6"},
                                                      {"seven", "7"},
                                                      {"eight", "8"},
                                                      {"nine", "9"},
                                                      {"ten", "10"},
                                                      {"eleven", "11"},
                                                      {"twelve", "12"},
                                                      {"infinitely many", "\\infty"},
                                                      {"all real numbers", "(-\\infty,\\infty)"},
                                                      {"dne", "does not exist"}});
  const std::string lower = lower_case(text);
  for (const Replacement& word : kWords)
    if (lower == word.first) return std::string(word.second);
  for (const std::string_view article : {"a ", "an ", "the "})
    if (lower.starts_with(article) && lower.size() > article.size() + 2 &&
        std::all_of(lower.begin() + static_cast<std::ptrdiff_t>(article.size()), lower.end(),
                    [](char c) { return is_letter(c) || c == ' '; }))
      return text.substr(article.size());
  return text;
}

}  // namespace

CleanedText clean_latex(std::string_view given) {
  std::string text(given);
  // Backslashes may have been escaped twice. In a matrix two of them end a row.
  if (text.find("\\begin") == std::string::npos) remove_all(text, "\\\\", "\\");
  tighten_groups(text);
  remove_colors(text);
  if (text.find("{o}") != std::string::npos)  // often typed for a degree sign
    for (const std::string_view name : {"\\text", "\\mathrm", "\\textrm"}) {
      remove_all(text, format("^{{{}{{o}}}}", name), "^\\circ ");
      remove_all(text, format("^{}{{o}}", name), "^\\circ ");
    }
  CleanedText out{replace_names(text)};
  replace_degrees(out.text);
  remove_all(out.text, "{,}");
  out.unit = open_texts(out.text);
  for (const Replacement& sign : {Replacement{"<=", "\\le "}, {">=", "\\ge "}, {" !=", " \\ne "}})
    remove_all(out.text, sign.first, sign.second);
  for (const std::string_view empty : {"\\{\\}", "\\{ \\}"})
    remove_all(out.text, empty, "\\emptyset");
  for (const std::string_view all : {"\\mathbb{R}", "\\mathbb R"})
    remove_all(out.text, all, "(-\\infty,\\infty)");
  if (out.text.find("\\pm") == std::string::npos) remove_all(out.text, "\\mp", "\\pm");
  join_parts(out.text);
  join_unions(out.text);
  strip_end(out.text);
  out.modulus = take_modulus(out.text);
  for (const std::string_view word : {"percent", "pct"})
    if (out.text.ends_with(word)) out.text.replace(out.text.size() - word.size(), word.size(), "%");
  if (out.text.ends_with('%')) {
    out.text.pop_back();
    out.percent = true;
    strip_end(out.text);
  }
  if (std::string words = drop_unit(out.text); !words.empty()) out.unit = std::move(words);
  if (out.unit.empty() && given.find("\\$") != std::string_view::npos) out.unit = "dollar";
  out.text = in_symbols(out.text);
  return out;
}

}  // namespace neap::reward
