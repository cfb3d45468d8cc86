#include "reward/names.h"

#include <algorithm>
#include <array>

#include "reward/answer.h"
#include "reward/number.h"
#include "reward/units.h"

namespace neap::reward {
namespace {

constexpr std::size_t kMaxNameBytes = 48;

// Reads names from the front.
class NameReader {
 public:
  explicit NameReader(std::string_view text) : text_(text) {}

  [[nodiscard]] bool is_all() { return (tuple() || quantity()) && (skip(), at_ == text_.size()); }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view part) {
    skip();
    if (!text_.substr(at_).starts_with(part)) return false;
    at_ += part.size();
    return true;
  }
  bool take_command(std::string_view name) {
    skip();
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with(name) || (rest.size() > name.size() && is_letter(rest[name.size()])))
      return false;
    at_ += name.size();
    return true;
  }
  std::size_t letters(bool upper) {
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (upper ? text_[at_] >= 'A' && text_[at_] <= 'Z' : is_letter(text_[at_])))
      ++at_;
    return at_ - start;
  }
  // Skips the content of a bracket at this position. False if it contains signs.
  bool enclosed(char open) {
    skip();
    if (at_ >= text_.size() || text_[at_] != open) return false;
    int depth = 0;
    for (std::size_t i = at_; i < text_.size(); ++i) {
      depth += nesting(text_[i]);
      if (depth != 0) continue;
      at_ = i + 1;
      return true;
    }
    return false;
  }
  // Reads (x, y) with letters in alphabetical order, so that it matches a tuple without names.
  bool tuple() {
    const std::size_t start = at_;
    char last = 0;
    int count = 0;
    if (take("(")) {
      do {
        skip();
        const char c = at_ < text_.size() ? text_[at_] : ' ';
        if (!is_letter(c) || c <= last) break;
        last = c;
        ++at_;
        ++count;
      } while (take(","));
      if (count > 1 && take(")")) return true;
    }
    at_ = start;
    return false;
  }
  bool quantity() {
    if (!atom()) return false;
    while (take(":"))
      if (!atom()) return false;
    return true;
  }
  bool atom() {
    skip();
    if (take_command("\\angle") || take_command("\\triangle") || take("m\\angle")) {
      skip();
      return letters(true) > 0 && tail();
    }
    for (const std::string_view function : {"\\sin", "\\cos", "\\tan"})
      if (take_command(function)) return atom();
    if (take("\\frac{d")) {
      at_ -= 2;
      return enclosed('{') && enclosed('{');
    }
    for (const std::string_view accent :
         {"\\vec", "\\overline", "\\overrightarrow", "\\bar", "\\hat"})
      if (take_command(accent)) return enclosed('{') && tail();
    if (take("|")) {
      const std::size_t count = letters(true);
      return count > 1 && take("|");
    }
    if (at_ < text_.size() && text_[at_] == '\\') return greek() && tail();
    return letter() && tail();
  }
  bool greek() {
    constexpr auto kNames = std::to_array<std::string_view>(
        {"\\alpha", "\\beta", "\\gamma", "\\delta", "\\theta", "\\phi", "\\lambda", "\\mu", "\\rho",
         "\\sigma", "\\omega", "\\tau", "\\epsilon", "\\eta", "\\nu", "\\xi", "\\psi", "\\ell",
         "\\Delta"});
    return std::any_of(kNames.begin(), kNames.end(),
                       [&](std::string_view name) { return take_command(name); });
  }
  // Reads one letter, or capital letters that denote points.
  bool letter() {
    const std::size_t start = at_;
    const std::size_t capitals = letters(true);
    at_ = start + capitals;
    if (capitals > 0) return capitals <= 4 && (at_ == text_.size() || !is_letter(text_[at_]));
    if (at_ >= text_.size() || !is_letter(text_[at_])) return false;
    ++at_;
    return at_ == text_.size() || !is_letter(text_[at_]);
  }
  // Reads what may follow a name: subscript, primes, the power of an inverse, and an argument.
  bool tail() {
    if (take("_")) {
      skip();
      const std::size_t start = at_;
      if (!enclosed('{')) {
        while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
        if (at_ == start && at_ == text_.size()) return false;
        if (at_ == start) ++at_;
      }
    }
    while (take("'")) continue;
    (void)(take("^{-1}") || take("^{\\prime}") || take("^\\prime") || take("^*") || take("^{*}"));
    const std::size_t argument = at_;
    if (enclosed('(') && text_.substr(argument, at_ - argument).find('=') != std::string_view::npos)
      return true;  // P(X = 1)
    return at_ <= text_.size();
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool is_phrase(std::string_view text) {
  std::size_t run = 0, longest = 0;
  for (const char c : text) {
    if (!is_letter(c) && c != ' ') return false;
    run = is_letter(c) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest > 2 && is_unit(text.substr(text.find_first_not_of(' ')), true);
}

}  // namespace

bool is_name(std::string_view text) {
  text = trimmed(text);
  if (text.empty() || text.size() > kMaxNameBytes) return false;
  return NameReader(text).is_all() || is_phrase(text);
}

std::string_view base_of_name(std::string_view text) {
  return trimmed(text).substr(0, trimmed(text).find('_'));
}

}  // namespace neap::reward
