#include "reward/latex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/format.h"
#include "reward/number.h"
#include "reward/units.h"

namespace neap::reward {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

// Commands: replaced where no letter follows. A name that ends in no letter stands for itself.
constexpr auto kCommands = std::to_array<Replacement>({{"\\left", ""},
                                                       {"\\right", ""},
                                                       {"\\big", ""},
                                                       {"\\bigl", ""},
                                                       {"\\bigr", ""},
                                                       {"\\Big", ""},
                                                       {"\\Bigl", ""},
                                                       {"\\Bigr", ""},
                                                       {"\\bigg", ""},
                                                       {"\\biggl", ""},
                                                       {"\\biggr", ""},
                                                       {"\\Bigg", ""},
                                                       {"\\Biggl", ""},
                                                       {"\\Biggr", ""},
                                                       {"\\displaystyle", ""},
                                                       {"\\textstyle", ""},
                                                       {"\\bf", ""},
                                                       {"\\rm", ""},
                                                       {"\\limits", ""},
                                                       {"\\quad", " "},
                                                       {"\\qquad", " "},
                                                       {"\\!", ""},
                                                       {"\\,", ""},
                                                       {"\\;", " "},
                                                       {"\\:", " "},
                                                       {"\\ ", " "},
                                                       {"\\(", ""},
                                                       {"\\)", ""},
                                                       {"\\[", ""},
                                                       {"\\]", ""},
                                                       {"\\$", ""},
                                                       {"\\cent", ""},
                                                       {"\\pounds", ""},
                                                       {"\\%", "%"},
                                                       {"\\#", ""},
                                                       {"\\dfrac", "\\frac"},
                                                       {"\\tfrac", "\\frac"},
                                                       {"\\cfrac", "\\frac"},
                                                       {"\\dbinom", "\\binom"},
                                                       {"\\tbinom", "\\binom"},
                                                       {"\\cdot", "*"},
                                                       {"\\times", "*"},
                                                       {"\\div", "/"},
                                                       {"\\colon", ":"},
                                                       {"\\lbrace", "\\{"},
                                                       {"\\rbrace", "\\}"},
                                                       {"\\approx", "="},
                                                       {"\\circ", "\\degree "},
                                                       {"\\degree", "\\degree "},
                                                       {"\\lvert", "|"},
                                                       {"\\rvert", "|"},
                                                       {"\\lt", "<"},
                                                       {"\\gt", ">"},
                                                       {"\\le", "\\le "},
                                                       {"\\leq", "\\le "},
                                                       {"\\leqslant", "\\le "},
                                                       {"\\ge", "\\ge "},
                                                       {"\\geq", "\\ge "},
                                                       {"\\geqslant", "\\ge "},
                                                       {"\\ne", "\\ne "},
                                                       {"\\neq", "\\ne "},
                                                       {"\\not=", "\\ne "},
                                                       {"\\varnothing", "\\emptyset"},
                                                       {"\\in", "\\in "},
                                                       {"\\cup", "\\cup "}});
// Characters of Unicode (UTF-8).
constexpr auto kCharacters = std::to_array<Replacement>({{"\u2212", "-"},
                                                         {"\u2013", "-"},
                                                         {"\u00d7", "*"},
                                                         {"\u00b7", "*"},
                                                         {"\u22c5", "*"},
                                                         {"\u00f7", "/"},
                                                         {"\u2044", "/"},
                                                         {"\u00b1", "\\pm "},
                                                         {"\u221e", "\\infty "},
                                                         {"\u00b0", "\\degree "},
                                                         {"\u222a", "\\cup "},
                                                         {"\u2208", "\\in "},
                                                         {"\u2205", "\\emptyset"},
                                                         {"\u2264", "\\le "},
                                                         {"\u2265", "\\ge "},
                                                         {"\u2260", "\\ne "},
                                                         {"\u211d", "\\mathbb{R}"},
                                                         {"\u221a", "sqrt"},
                                                         {"\u00a0", " "},
                                                         {"\u2009", " "},
                                                         {"\u202f", " "},
                                                         {"\u20ac", ""},
                                                         {"\u00a3", ""},
                                                         {"\u00a5", ""},
                                                         {"\u00a2", ""},
                                                         {"\u03b1", "\\alpha "},
                                                         {"\u03b2", "\\beta "},
                                                         {"\u03b3", "\\gamma "},
                                                         {"\u03b4", "\\delta "},
                                                         {"\u03b8", "\\theta "},
                                                         {"\u03bb", "\\lambda "},
                                                         {"\u03bc", "\\mu "},
                                                         {"\u03c0", "\\pi "},
                                                         {"\u03c1", "\\rho "},
                                                         {"\u03c3", "\\sigma "},
                                                         {"\u03c6", "\\varphi "},
                                                         {"\u03c9", "\\omega "},
                                                         {"\u00bd", "\\frac{1}{2}"},
                                                         {"\u00bc", "\\frac{1}{4}"},
                                                         {"\u00be", "\\frac{3}{4}"},
                                                         {"\u2153", "\\frac{1}{3}"},
                                                         {"\u2154", "\\frac{2}{3}"},
                                                         {"\u2155", "\\frac{1}{5}"},
                                                         {"\u2156", "\\frac{2}{5}"},
                                                         {"\u2157", "\\frac{3}{5}"},
                                                         {"\u2158", "\\frac{4}{5}"},
                                                         {"\u2159", "\\frac{1}{6}"},
                                                         {"\u215a", "\\frac{5}{6}"},
                                                         {"\u215b", "\\frac{1}{8}"},
                                                         {"\u215c", "\\frac{3}{8}"},
                                                         {"\u215d", "\\frac{5}{8}"},
                                                         {"\u215e", "\\frac{7}{8}"},
                                                         {"\u2150", "\\frac{1}{7}"},
                                                         {"\u2151", "\\frac{1}{9}"}});
// Powers, by their digit.
constexpr std::array<std::string_view, 10> kPowers = {"\u2070", "\u00b9", "\u00b2", "\u00b3",
                                                      "\u2074", "\u2075", "\u2076", "\u2077",
                                                      "\u2078", "\u2079"};
// What they enclose stands for itself.
constexpr auto kTextCommands = std::to_array<std::string_view>(
    {"\\text", "\\textbf", "\\textit", "\\mathrm", "\\mathbf", "\\mathit", "\\mbox",
     "\\operatorname", "\\textrm", "\\boldsymbol", "\\bold", "\\underline", "\\boxed", "\\fbox"});
constexpr auto kDegrees =
    std::to_array<std::string_view>({"^{\\degree }", "^{ \\degree }", "^\\degree ", "\\degree "});

bool command_at(std::string_view text, std::size_t at, std::string_view name) {
  if (!text.substr(at).starts_with(name)) return false;
  const std::size_t end = at + name.size();
  return !is_letter(name.back()) || end >= text.size() || !is_letter(text[end]);
}

// The digit of a power, which is passed; empty: there is none.
std::string power_at(std::string_view text, std::size_t& at) {
  for (std::size_t digit = 0; digit < kPowers.size(); ++digit) {
    if (!text.substr(at).starts_with(kPowers[digit])) continue;
    at += kPowers[digit].size();
    return std::to_string(digit);
  }
  return {};
}

std::string replace_names(std::string_view text) {
  std::string out;
  bool digit_ended = false;  // the last was a power
  for (std::size_t at = 0; at < text.size();) {
    const auto replace = [&](const Replacement& r, bool found) {
      if (!found) return false;
      out += r.second;
      at += r.first.size();
      return true;
    };
    const auto command = [&](const Replacement& r) {
      return replace(r, command_at(text, at, r.first));
    };
    const auto character = [&](const Replacement& r) {
      return replace(r, text.substr(at).starts_with(r.first));
    };
    if (const std::string digit = power_at(text, at); !digit.empty()) {
      // A second digit goes into the braces of the first.
      out.insert(digit_ended ? out.size() - 1 : out.size(),
                 digit_ended ? digit : "^{" + digit + "}");
      digit_ended = true;
      continue;
    }
    digit_ended = false;
    const bool special = text[at] == '\\' || static_cast<unsigned char>(text[at]) >= 0x80;
    if (special && (std::any_of(kCommands.begin(), kCommands.end(), command) ||
                    std::any_of(kCharacters.begin(), kCharacters.end(), character)))
      continue;
    if (text[at] == '\\' && text.substr(at).starts_with("\\\\")) {  // a row of a matrix
      out += "\\\\";
      at += 2;
      continue;
    }
    const char c = text[at++];
    if (c == '$') continue;
    out += c == '\n' || c == '\t' || c == '\r' || c == '~' ? ' ' : c;
  }
  return out;
}

void remove_all(std::string& text, std::string_view part, std::string_view by = "") {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size())
    text.replace(at, part.size(), by);
}

// The brace that closes the one before `from`; npos: none does.
std::size_t closing_brace(std::string_view text, std::size_t from) {
  int depth = 1;
  for (std::size_t i = from; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return i;
  }
  return std::string_view::npos;
}

// What stands before a unit.
bool ends_a_number(std::string_view text) {
  text = trimmed(text);
  return !text.empty() && (is_digit(text.back()) || text.back() == '}' || text.back() == ')' ||
                           text.ends_with("\\pi"));
}

// The 50^\text{th}: what is before `at`, and what stands there, is no power.
bool is_ordinal(std::string_view text, std::size_t at, std::string_view inner) {
  constexpr std::array<std::string_view, 4> kEndings = {"st", "nd", "rd", "th"};
  return (text.substr(0, at).ends_with('^') || text.substr(0, at).ends_with("^{")) &&
         std::find(kEndings.begin(), kEndings.end(), inner) != kEndings.end();
}

// Removes the power of a unit at `at`: \text{cm}^2.
void erase_power(std::string& text, std::size_t at) {
  if (at >= text.size() || text[at] != '^') return;
  std::size_t end = at + 1;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '{' || text[end] == '}')) ++end;
  text.erase(at, end - at);
}

// \text{...}: a unit behind a number goes, else its contents stay.
void open_texts(std::string& text) {
  for (const std::string_view name : kTextCommands) {
    const std::string head = std::string(name) + "{";
    for (std::size_t at = 0; (at = text.find(head, at)) != std::string::npos;) {
      const std::size_t close = closing_brace(text, at + head.size());
      if (close == std::string::npos) return;
      const std::string whole = text.substr(at + head.size(), close - at - head.size());
      const std::string_view inner = trimmed(whole);
      const bool joins = inner == "and" || inner == "or";
      const bool unit = is_unit(inner, true) && ends_a_number(std::string_view(text).substr(0, at));
      if (is_ordinal(text, at, inner)) {
        const std::size_t power = text.rfind('^', at);
        text.erase(power, close + 1 - power + (text[at - 1] == '{' ? 1 : 0));
        at = power;
      } else if (unit) {
        text.erase(at, close + 1 - at);
        erase_power(text, at);
      } else {
        text.replace(at, close + 1 - at, joins ? format(" {} ", inner) : std::string(inner));
      }
    }
  }
}

// "and" and "or" between parts; between inequalities "or" is a union.
void join_parts(std::string& text) {
  const bool inequalities = text.find_first_of("<>") != std::string::npos ||
                            text.find("\\le ") != std::string::npos ||
                            text.find("\\ge ") != std::string::npos;
  remove_all(text, " and ", ", ");
  remove_all(text, " or ", inequalities ? "\\cup " : ", ");
  for (const std::string_view twice : {",,", ", ,", ",  ,"})
    for (std::size_t at = 0; (at = text.find(twice, at)) != std::string::npos;)
      text.replace(at, twice.size(), ",");
}

// Degrees are what angles are counted in, but functions of angles want radians.
void replace_degrees(std::string& text) {
  constexpr std::array<std::string_view, 6> kOfAngles = {"sin", "cos", "tan", "sec", "csc", "cot"};
  const bool radians = std::any_of(kOfAngles.begin(), kOfAngles.end(), [&](std::string_view name) {
    return text.find(name) != std::string::npos;
  });
  for (const std::string_view degree : kDegrees)
    remove_all(text, degree, radians ? " \\degree " : "");
}

void strip_end(std::string& text) {
  text = std::string(trimmed(text));
  while (text.ends_with('.') || text.ends_with(',') || text.ends_with(';') ||
         text.ends_with('\\')) {
    text.pop_back();
    text = std::string(trimmed(text));
  }
}

}  // namespace

CleanedText clean_latex(std::string_view given) {
  std::string text(given);
  // Backslashes that were escaped twice; in a matrix two of them end a row.
  if (text.find("\\begin") == std::string::npos) remove_all(text, "\\\\", "\\");
  CleanedText out{replace_names(text)};
  replace_degrees(out.text);
  remove_all(out.text, "{,}");
  open_texts(out.text);
  for (const Replacement& sign : {Replacement{"<=", "\\le "}, {">=", "\\ge "}, {" !=", " \\ne "}})
    remove_all(out.text, sign.first, sign.second);
  for (const std::string_view empty : {"\\{\\}", "\\{ \\}"})
    remove_all(out.text, empty, "\\emptyset");
  for (const std::string_view all : {"\\mathbb{R}", "\\mathbb R"})
    remove_all(out.text, all, "(-\\infty,\\infty)");
  if (out.text.find("\\pm") == std::string::npos) remove_all(out.text, "\\mp", "\\pm");
  join_parts(out.text);
  strip_end(out.text);
  if (out.text.ends_with(" percent")) out.text.replace(out.text.size() - 8, 8, "%");
  if (out.text.ends_with('%')) {
    out.text.pop_back();
    out.percent = true;
    strip_end(out.text);
  }
  drop_unit(out.text);
  return out;
}

}  // namespace neap::reward
