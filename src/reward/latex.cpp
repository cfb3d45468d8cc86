#include "reward/latex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "reward/number.h"

namespace neap::reward {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

// Commands: replaced where no letter follows. A name that ends in no letter stands for itself.
constexpr std::array<Replacement, 34> kCommands = {{{"\\left", ""},
                                                    {"\\right", ""},
                                                    {"\\big", ""},
                                                    {"\\Big", ""},
                                                    {"\\displaystyle", ""},
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
                                                    {"\\%", "%"},
                                                    {"\\#", ""},
                                                    {"\\dfrac", "\\frac"},
                                                    {"\\tfrac", "\\frac"},
                                                    {"\\cfrac", "\\frac"},
                                                    {"\\cdot", "*"},
                                                    {"\\times", "*"},
                                                    {"\\div", "/"},
                                                    {"\\lbrace", "\\{"},
                                                    {"\\rbrace", "\\}"},
                                                    {"\\approx", "="},
                                                    {"\\degree", ""},
                                                    {"\\lvert", "|"},
                                                    {"\\rvert", "|"},
                                                    {"\\in", "\\in "},
                                                    {"\\cup", "\\cup "}}};
// Characters of Unicode (UTF-8).
constexpr std::array<Replacement, 15> kCharacters = {{{"\u2212", "-"},
                                                      {"\u2013", "-"},
                                                      {"\u00d7", "*"},
                                                      {"\u00b7", "*"},
                                                      {"\u22c5", "*"},
                                                      {"\u00f7", "/"},
                                                      {"\u03c0", "\\pi "},
                                                      {"\u221e", "\\infty "},
                                                      {"\u00b2", "^2"},
                                                      {"\u00b3", "^3"},
                                                      {"\u00b0", ""},
                                                      {"\u222a", "\\cup "},
                                                      {"\u221a", "sqrt"},
                                                      {"\u00a0", " "},
                                                      {"\u20ac", ""}}};
constexpr std::array<std::string_view, 8> kTextCommands = {"\\text",         "\\textbf", "\\textit",
                                                           "\\mathrm",       "\\mathbf", "\\mbox",
                                                           "\\operatorname", "\\textrm"};

bool command_at(std::string_view text, std::size_t at, std::string_view name) {
  if (!text.substr(at).starts_with(name)) return false;
  const std::size_t end = at + name.size();
  return !is_letter(name.back()) || end >= text.size() || !is_letter(text[end]);
}

std::string replace_names(std::string_view text) {
  std::string out;
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

// \text{...}: a unit behind something, "and" and "or" between two, else its contents.
void open_texts(std::string& text) {
  for (const std::string_view name : kTextCommands) {
    const std::string head = std::string(name) + "{";
    for (std::size_t at = 0; (at = text.find(head, at)) != std::string::npos;) {
      const std::size_t close = text.find('}', at);
      if (close == std::string::npos) return;
      const std::string inner(
          trimmed(std::string_view(text).substr(at + head.size(), close - at - head.size())));
      const bool behind = !trimmed(std::string_view(text).substr(0, at)).empty();
      const bool joins = inner == "and" || inner == "or";
      const bool unit = behind && !joins && std::none_of(inner.begin(), inner.end(), is_digit) &&
                        (is_digit(text[at - 1]) || text[at - 1] == ' ' || text[at - 1] == '}' ||
                         text[at - 1] == ')');
      const std::string by = joins ? "," : unit ? "" : inner;
      text.replace(at, close + 1 - at, by);
      at += by.size();
      // The power of a unit: \text{cm}^2.
      if (!unit || at >= text.size() || text[at] != '^') continue;
      std::size_t end = at + 1;
      while (end < text.size() && (is_digit(text[end]) || text[end] == '{' || text[end] == '}'))
        ++end;
      text.erase(at, end - at);
    }
  }
}

// "12 apples", "5 cm^2": words of two letters or more behind a number.
void drop_unit_words(std::string& text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  while (at < text.size() && (is_digit(text[at]) || text[at] == '.' || text[at] == ',')) ++at;
  const std::string number = text.substr(0, at);
  if (!canonical_decimal(number) || at >= text.size() || text[at] != ' ') return;
  const std::string_view words = std::string_view(text).substr(at + 1);
  const auto in_a_unit = [](char c) {
    return is_letter(c) || c == ' ' || c == '^' || c == '2' || c == '3' || c == '.' || c == '/';
  };
  const bool plain = std::all_of(words.begin(), words.end(), in_a_unit);
  if (plain && words.size() > 1 && is_letter(words[0]) && is_letter(words[1]) &&
      words.find(" and ") == std::string_view::npos &&
      words.find(" or ") == std::string_view::npos && !words.starts_with("or ") &&
      !words.starts_with("and "))
    text = number;
}

void strip_end(std::string& text) {
  text = std::string(trimmed(text));
  while (text.ends_with('.') || text.ends_with(',') || text.ends_with(';')) {
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
  for (const std::string_view degree : {"^{\\circ}", "^\\circ", "\\circ"})
    remove_all(out.text, degree);
  remove_all(out.text, "{,}");
  open_texts(out.text);
  remove_all(out.text, " and ", ",");
  remove_all(out.text, " or ", ",");
  strip_end(out.text);
  if (out.text.ends_with('%')) {
    out.text.pop_back();
    out.percent = true;
    strip_end(out.text);
  }
  drop_unit_words(out.text);
  return out;
}

}  // namespace neap::reward
