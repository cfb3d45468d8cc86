#include "reward/units.h"

#include <algorithm>
#include <array>

#include "reward/number.h"

namespace neap::reward {
namespace {

// Two letters that are no product of variables.
constexpr std::array<std::string_view, 24> kShort = {
    "cm", "mm", "km", "nm", "kg", "mg", "ft", "in", "yd", "mi", "oz", "lb",
    "hr", "ml", "mL", "mW", "kW", "Hz", "dm", "sq", "st", "nd", "rd", "th"};
// They change the number, or are mathematics.
constexpr std::array<std::string_view, 44> kNoUnit = {
    "and",      "or",       "plus",     "minus",   "times",   "over",     "divided",  "squared",
    "cubed",    "mod",      "to",       "than",    "if",      "for",      "when",     "where",
    "with",     "hundred",  "thousand", "million", "billion", "trillion", "hundreds", "thousands",
    "millions", "billions", "dozen",    "dozens",  "half",    "halves",   "third",    "thirds",
    "fifths",   "sin",      "cos",      "tan",     "sec",     "csc",      "cot",      "log",
    "exp",      "sqrt",     "infinity", "not"};

// The letters at the front.
std::string_view first_word(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_letter);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

// 5 p.m. is no length of time.
bool is_time(std::string_view words) {
  constexpr std::array<std::string_view, 4> kHalves = {"a.m", "p.m", "A.M", "P.M"};
  return std::any_of(kHalves.begin(), kHalves.end(),
                     [&](std::string_view half) { return words.starts_with(half); }) ||
         words == "am" || words == "pm" || words == "AM" || words == "PM";
}

bool has_only_words(std::string_view words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const char c = words[i];
    const bool digit = is_digit(c) && i > 0 &&
                       (is_letter(words[i - 1]) || words[i - 1] == '^' || words[i - 1] == '{');
    if (!is_letter(c) && !digit && std::string_view(" ^./-{}'").find(c) == std::string_view::npos)
      return false;
  }
  return true;
}

// Where letters begin that belong to no command and no name of a constant or function.
std::size_t words_at(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '\\') ++at;
    const std::string_view word = first_word(text.substr(at));
    const bool command = at > 0 && text[at - 1] == '\\';
    if (!word.empty() && !command && word != "sqrt" && word != "pi") return at;
    at += std::max<std::size_t>(word.size(), 1);
  }
  return text.size();
}

}  // namespace

bool is_unit(std::string_view words, bool in_text) {
  const std::string_view first = first_word(words);
  if (first.empty() || !has_only_words(words) || is_time(words)) return false;
  if (!in_text && first.size() < 3 && !words.starts_with("m/s") &&
      std::find(kShort.begin(), kShort.end(), first) == kShort.end())
    return false;
  for (std::size_t at = 0; at < words.size();) {
    const std::string_view word = first_word(words.substr(at));
    if (std::find(kNoUnit.begin(), kNoUnit.end(), word) != kNoUnit.end()) return false;
    at += std::max<std::size_t>(word.size(), 1);
  }
  return true;
}

void drop_unit(std::string& text) {
  const std::string_view all = text;
  const std::size_t at = words_at(all);
  if (at == all.size()) return;
  const std::string_view number = trimmed(all.substr(0, at));
  const bool has_number =
      std::any_of(number.begin(), number.end(), is_digit) || number.ends_with("\\pi");
  if (!has_number) return;
  // 6abc may be a product.
  const bool apart = all[at - 1] == ' ' || first_word(all.substr(at)).size() == 2;
  if (!apart || !is_unit(all.substr(at), false)) return;
  const char last = number.back();
  if (is_digit(last) || last == '}' || last == ')' || number.ends_with("pi"))
    text = std::string(number);
}

}  // namespace neap::reward
