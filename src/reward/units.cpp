#include "reward/units.h"

#include <algorithm>
#include <array>
#include <utility>

#include "reward/number.h"

namespace neap::reward {
namespace {

// Two-letter units that are not products of variables.
constexpr std::array<std::string_view, 24> kShort = {
    "cm", "mm", "km", "nm", "kg", "mg", "ft", "in", "yd", "mi", "oz", "lb",
    "hr", "ml", "mL", "mW", "kW", "Hz", "dm", "sq", "st", "nd", "rd", "th"};
// These words change the number, contradict it, or are mathematics.
constexpr auto kNoUnit = std::to_array<std::string_view>(
    {"and",         "or",        "plus",       "minus",     "times",     "over",       "divided",
     "squared",     "cubed",     "mod",        "to",        "than",      "if",         "for",
     "when",        "where",     "with",       "hundred",   "thousand",  "million",    "billion",
     "trillion",    "hundreds",  "thousands",  "millions",  "billions",  "dozen",      "dozens",
     "half",        "halves",    "third",      "thirds",    "fifths",    "sin",        "cos",
     "tan",         "sec",       "csc",        "cot",       "log",       "exp",        "sqrt",
     "infinity",    "not",       "is",         "are",       "was",       "be",         "isn",
     "aren",        "wrong",     "false",      "incorrect", "no",        "none",       "never",
     "nor",         "neither",   "either",     "but",       "maybe",     "perhaps",    "possibly",
     "except",      "unless",    "instead",    "rather",    "between",   "versus",     "factorial",
     "choose",      "percent",   "more",       "less",      "fewer",     "greater",    "most",
     "least",       "mod",       "modulo",     "base",      "the",       "negative",   "quarter",
     "quarters",    "fourth",    "fourths",    "fifth",     "sixth",     "sixths",     "seventh",
     "sevenths",    "eighth",    "eighths",    "ninth",     "ninths",    "tenth",      "tenths",
     "eleventh",    "elevenths", "twelfth",    "twelfths",  "hundredth", "hundredths", "thousandth",
     "thousandths", "millionth", "millionths", "two",       "three",     "four",       "five",
     "six",         "seven",     "eight",      "nine",      "ten",       "eleven",     "twelve",
     "thirteen",    "fourteen",  "fifteen",    "sixteen",   "seventeen", "eighteen",   "nineteen",
     "twenty",      "thirty",    "forty",      "fifty",     "sixty",     "seventy",    "eighty",
     "ninety",      "bn",        "mil",        "lakh",      "lakhs",     "crore",      "crores",
     "score",       "scores",    "pair",       "pairs",     "gross",     "point",      "bound",
     "minus",       "below",     "above",      "under",     "opposite",  "inverse",    "reciprocal",
     "answer",      "true",      "correct",    "can",       "cannot",    "could",      "may",
     "might"});
constexpr int kOneByAnother = 100;  // offset of the kinds of such units
constexpr std::size_t kMostWords = 5;
// Symbols inside of \mathrm{}, without letters that mathematics also writes upright.
constexpr auto kSymbols = std::to_array<std::string_view>(
    {"m",   "s",   "g",   "h",   "N",   "J",    "W",   "V",  "K",   "L",  "Pa",
     "kPa", "Hz",  "kHz", "MHz", "GHz", "eV",   "MeV", "kJ", "mol", "ms", "ns",
     "min", "rad", "deg", "atm", "mph", "km/h", "m/s", "dB", "pm"});

struct Magnitude {
  std::string_view word, power;
};
constexpr std::array<Magnitude, 5> kMagnitudes = {
    {{"hundred", "2"}, {"thousand", "3"}, {"million", "6"}, {"billion", "9"}, {"trillion", "12"}}};

struct NamedSize {
  std::string_view name;
  int kind;
  std::string_view factor;
};
constexpr auto kSizes = std::to_array<NamedSize>({{"m", 0, "1"},
                                                  {"meter", 0, "1"},
                                                  {"metre", 0, "1"},
                                                  {"cm", 0, "1/100"},
                                                  {"centimeter", 0, "1/100"},
                                                  {"mm", 0, "1/1000"},
                                                  {"millimeter", 0, "1/1000"},
                                                  {"km", 0, "1000"},
                                                  {"kilometer", 0, "1000"},
                                                  {"dm", 0, "1/10"},
                                                  {"nm", 0, "1/10^9"},
                                                  {"in", 0, "254/10000"},
                                                  {"inch", 0, "254/10000"},
                                                  {"ft", 0, "3048/10000"},
                                                  {"foot", 0, "3048/10000"},
                                                  {"feet", 0, "3048/10000"},
                                                  {"yd", 0, "9144/10000"},
                                                  {"yard", 0, "9144/10000"},
                                                  {"mi", 0, "1609344/1000"},
                                                  {"mile", 0, "1609344/1000"},
                                                  {"g", 1, "1"},
                                                  {"gram", 1, "1"},
                                                  {"kg", 1, "1000"},
                                                  {"kilogram", 1, "1000"},
                                                  {"mg", 1, "1/1000"},
                                                  {"milligram", 1, "1/1000"},
                                                  {"s", 2, "1"},
                                                  {"sec", 2, "1"},
                                                  {"second", 2, "1"},
                                                  {"min", 2, "60"},
                                                  {"minute", 2, "60"},
                                                  {"h", 2, "3600"},
                                                  {"hr", 2, "3600"},
                                                  {"hour", 2, "3600"},
                                                  {"day", 2, "86400"},
                                                  {"week", 2, "604800"},
                                                  {"L", 3, "1"},
                                                  {"l", 3, "1"},
                                                  {"liter", 3, "1"},
                                                  {"litre", 3, "1"},
                                                  {"mL", 3, "1/1000"},
                                                  {"ml", 3, "1/1000"},
                                                  {"milliliter", 3, "1/1000"},
                                                  {"dollar", 4, "1"},
                                                  {"cent", 4, "1/100"}});

// The letters at the beginning.
std::string_view first_word(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_letter);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

// 5 p.m. is not a duration.
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

// Start of letters that are not part of a command or of a name of a constant or function.
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
  // 4\text{i} is not 4.
  if (in_text && words.size() == 1) return is_unit_symbol(words);
  if (in_text && first.size() == 1 && !is_unit_symbol(first)) return false;
  if (!in_text && first.size() < 3 && !words.starts_with("m/s") &&
      std::find(kShort.begin(), kShort.end(), first) == kShort.end())
    return false;
  std::size_t count = 0;
  for (std::size_t at = 0; at < words.size();) {
    const std::string_view word = first_word(words.substr(at));
    if (!word.empty() && ++count > kMostWords) return false;
    if (std::find(kNoUnit.begin(), kNoUnit.end(), lower_case(word)) != kNoUnit.end()) return false;
    at += std::max<std::size_t>(word.size(), 1);
  }
  return true;
}

bool is_unit_symbol(std::string_view text) {
  const std::string_view symbol = text.substr(0, text.find('^'));
  const auto among = [&](const auto& names) {
    return std::find(names.begin(), names.end(), symbol) != names.end();
  };
  return among(kSymbols) || among(kShort) || (first_word(text).size() > 2 && is_unit(text, false));
}

namespace {

// Writes "5 million", with or without a unit, as a number.
void write_magnitude(std::string& text) {
  for (const Magnitude& m : kMagnitudes) {
    const std::size_t at = lower_case(text).find(m.word);
    if (at == std::string::npos || at == 0) continue;
    const std::string_view before = trimmed(std::string_view(text).substr(0, at));
    const std::string_view behind = std::string_view(text).substr(at + m.word.size());
    const bool number = std::all_of(before.begin(), before.end(),
                                    [](char c) { return is_digit(c) || c == '.' || c == ','; });
    if (before.empty() || !number || !is_digit(before.back()) ||
        (!behind.empty() && behind.front() != ' '))
      continue;
    text = std::string(before) + "*10^{" + std::string(m.power) + "}" + std::string(behind);
    return;
  }
}

}  // namespace

std::string drop_unit(std::string& text) {
  write_magnitude(text);
  const std::string all = text;
  const std::string_view view = all;
  const std::size_t at = words_at(view);
  if (at == view.size()) return {};
  const std::string_view number = trimmed(view.substr(0, at));
  const bool has_number =
      std::any_of(number.begin(), number.end(), is_digit) || number.ends_with("\\pi");
  if (!has_number) return {};
  // 6abc may be a product.
  const bool apart = view[at - 1] == ' ' || first_word(view.substr(at)).size() == 2;
  if (!apart || !is_unit(view.substr(at), false)) return {};
  const char last = number.back();
  if (!is_digit(last) && last != '}' && last != ')' && !number.ends_with("pi")) return {};
  text = std::string(number);
  return std::string(trimmed(view.substr(at)));
}

std::optional<UnitSize> size_of_unit(std::string_view words) {
  UnitSize out;
  words = trimmed(words);
  constexpr std::pair<std::string_view, int> kMarks[] = {
      {"square ", 2}, {"sq ", 2}, {"cubic ", 3}, {"^2", -2},
      {"^{2}", -2},   {"^3", -3}, {"^{3}", -3}};
  for (const auto& [mark, power] : kMarks) {
    if (power > 0 ? !words.starts_with(mark) : !words.ends_with(mark)) continue;
    if (power > 0) words.remove_prefix(mark.size());
    if (power < 0) words.remove_suffix(mark.size());
    out.power = power > 0 ? power : -power;
    break;
  }
  if (const std::size_t slash = words.find('/'); slash != std::string_view::npos) {
    const auto above = size_of_unit(words.substr(0, slash));
    const auto below = words.find('/', slash + 1) == std::string_view::npos
                           ? size_of_unit(words.substr(slash + 1))
                           : std::nullopt;
    if (!above || !below || above->power != 1) return std::nullopt;
    out.kind = kOneByAnother * (1 + below->kind) * below->power + above->kind;
    out.factor =
        "(" + above->factor + ")/((" + below->factor + ")^" + std::to_string(below->power) + ")";
    return out;
  }
  words = trimmed(words);
  if (words.ends_with('.')) words.remove_suffix(1);
  for (const NamedSize& size : kSizes) {
    const bool plural = size.name.size() > 2 && (words.ends_with("s") || words.ends_with("es")) &&
                        words.starts_with(size.name) && words.size() <= size.name.size() + 2;
    if (words != size.name && !plural) continue;
    out.kind = size.kind;
    out.factor = std::string(size.factor);
    return out;
  }
  return std::nullopt;
}

}  // namespace neap::reward
