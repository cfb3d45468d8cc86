#include "reward/latex_symbols.h"

#include <algorithm>
#include <array>
#include <utility>

#include "reward/number.h"

namespace neap::reward {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

// Commands are replaced if no letter follows them. A name that does not end in a letter is always
// replaced.
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
                                                       {"\\large", ""},
                                                       {"\\Large", ""},
                                                       {"\\LARGE", ""},
                                                       {"\\huge", ""},
                                                       {"\\Huge", ""},
                                                       {"\\small", ""},
                                                       {"\\scriptstyle", ""},
                                                       {"\\enspace", " "},
                                                       {"\\langle", "("},
                                                       {"\\rangle", ")"},
                                                       {"\\varphi", "\\phi "},
                                                       {"\\varepsilon", "\\epsilon "},
                                                       {"\\vartheta", "\\theta "},
                                                       {"\\setminus", "\\setminus "},
                                                       {"\\backslash", "\\setminus "},
                                                       {"\\equiv", "="},
                                                       {"\\simeq", "\\approx "},
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
                                                       {"\\approx", "\\approx "},
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
// Unicode characters (UTF-8).
constexpr auto kCharacters = std::to_array<Replacement>({{"\u2248", "\\approx "},
                                                         {"\u2212", "-"},
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
                                                         {"\u03c6", "\\phi "},
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
// Superscript digits, by digit.
constexpr std::array<std::string_view, 10> kPowers = {"\u2070", "\u00b9", "\u00b2", "\u00b3",
                                                      "\u2074", "\u2075", "\u2076", "\u2077",
                                                      "\u2078", "\u2079"};
bool command_at(std::string_view text, std::size_t at, std::string_view name) {
  if (!text.substr(at).starts_with(name)) return false;
  const std::size_t end = at + name.size();
  return !is_letter(name.back()) || end >= text.size() || !is_letter(text[end]);
}

// Reads a superscript digit and moves `at` past it. Empty if there is none.
std::string power_at(std::string_view text, std::size_t& at) {
  for (std::size_t digit = 0; digit < kPowers.size(); ++digit) {
    if (!text.substr(at).starts_with(kPowers[digit])) continue;
    at += kPowers[digit].size();
    return std::to_string(digit);
  }
  return {};
}

// Position after the optional row spacing of a matrix: \\[4pt].
std::size_t behind_row_end(std::string_view text, std::size_t at) {
  if (at + 1 >= text.size() || text[at] != '[' || (!is_digit(text[at + 1]) && text[at + 1] != '-'))
    return at;
  const std::size_t close = text.find(']', at);
  const bool length =
      close != std::string_view::npos && close - at < 12 && is_letter(text[close - 1]);
  return length ? close + 1 : at;
}

}  // namespace

std::string replace_names(std::string_view text) {
  std::string out;
  bool digit_ended = false;  // the previous character was a superscript digit
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
      // Add a second digit inside the braces of the first.
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
    if (text[at] == '\\' && text.substr(at).starts_with("\\\\")) {  // end of a matrix row
      out += "\\\\";
      at = behind_row_end(text, at + 2);
      continue;
    }
    const char c = text[at++];
    if (c == '$') continue;
    out += c == '\n' || c == '\t' || c == '\r' || c == '~' ? ' ' : c;
  }
  return out;
}

}  // namespace neap::reward
