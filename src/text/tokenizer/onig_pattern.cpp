#include "text/tokenizer/onig_pattern.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/format.h"
#include "base/regex.h"
#include "base/status.h"
#include "text/tokenizer/unicode_tables.h"

namespace neap::text {
namespace {

// White space in Oniguruma. PCRE2 also includes U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

std::string additions(std::string_view name) {
  for (const unicode::ClassAddition& a : unicode::kClassAdditions) {
    if (name == a.name) return a.ranges;
  }
  return {};
}

// Content of a character class that matches \p{name}.
std::string property(std::string name) {
  static const std::map<std::string, std::string, std::less<>> kLongNames = {
      {"Letter", "L"},
      {"Number", "N"},
      {"Punctuation", "P"},
      {"Symbol", "S"},
      {"Mark", "M"},
      {"Separator", "Z"},
      {"Other", "C"},
      {"Uppercase_Letter", "Lu"},
      {"Lowercase_Letter", "Ll"},
      {"Decimal_Number", "Nd"}};
  if (const auto it = kLongNames.find(name); it != kLongNames.end()) name = it->second;
  // By default PCRE2 matches a script's name against script extensions.
  if (name.size() > 2 && name != "Any") name = "sc:" + name;
  return "\\p{" + name + "}" + additions(name);
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (depth_ > 0) {
        inside_class(c);
      } else if (c == '[') {
        open_class();
      } else if (next_is("(*")) {  // a verb of PCRE2
        refuse("\"(*\"");
      } else if (c == '{') {
        quantifier();
      } else {
        take();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kUnsupported, format("{}: the pattern {} has {}, which is not supported",
                                                where_, quoted_pattern(in_), what));
  }
  [[nodiscard]] bool next_is(std::string_view text) const {
    return in_.substr(at_).starts_with(text);
  }
  void take() { out_ += in_[at_++]; }

  /// Writes a set with `inside` as content of a class. `negative`: its complement.
  void set(const std::string& inside, bool negative, std::string_view complement = {}) {
    if (depth_ == 0) {
      out_ += (negative ? "[^" : "[") + inside + "]";
    } else if (!negative) {
      out_ += inside;
    } else if (!complement.empty()) {
      out_ += complement;
    } else {
      refuse("a negated set inside of a class");
    }
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a backslash at its end");
    const char kind = in_[at_ + 1];
    const auto letter = static_cast<char>(std::tolower(static_cast<unsigned char>(kind)));
    const bool upper = letter != kind;
    if (letter == 'p') {
      named_property(upper);
      return;
    }
    if (kind == 'u') {
      if (at_ + 6 > in_.size()) refuse("\\u without four digits");
      out_ += "\\x{" + std::string(in_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
      return;
    }
    at_ += 2;
    if (letter == 's') {
      set(std::string(kSpaces), upper, kNoSpaces);
    } else if (letter == 'd') {
      set("\\p{Nd}" + additions("Nd"), upper);
    } else if (letter == 'w') {
      set("\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" + additions("w"), upper);
    } else if (letter == 'h') {
      set("0-9a-fA-F", upper);
    } else if (kind == 'G' || kind == 'R' || kind == 'X' || kind == 'K' || kind == 'Q' ||
               kind == 'E' || kind == 'N' || kind == 'C') {
      refuse(std::string("\\") + kind);
    } else {
      out_ += '\\';
      out_ += kind;
    }
  }

  void named_property(bool negative) {
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse("\\p without a name in braces");
    std::string name(in_.substr(at_ + 3, close - at_ - 3));
    if (name.starts_with('^')) {
      negative = !negative;
      name.erase(0, 1);
    }
    at_ = close + 1;
    const std::string inside = property(name);
    set(inside, negative, additions(name).empty() ? "\\P{" + name + "}" : "");
  }

  void open_class() {
    depth_ = 1;
    take();
    if (next_is("^")) take();
    if (next_is("]")) {  // directly after the opening bracket it is a literal
      out_ += "\\]";
      ++at_;
    }
  }

  void inside_class(char c) {
    if (c == ']') {
      if (--depth_ == 0) out_ += ']';
      ++at_;
    } else if (next_is("[:")) {
      const std::size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) refuse("\"[:\" without \":]\"");
      const std::string_view name = in_.substr(at_, close + 2 - at_);
      out_ += name == "[:punct:]"   ? property("P") + property("S")
              : name == "[:space:]" ? std::string(kSpaces)
                                    : std::string(name);
      at_ = close + 2;
    } else if (c == '[') {  // a nested class: their union
      ++depth_;
      ++at_;
      if (next_is("^")) refuse("a negated class in a class");
    } else if (next_is("&&")) {
      refuse("an intersection of classes");
    } else {
      take();
    }
  }

  // "{n,m}+" repeats the repetition; in PCRE2 it would be possessive.
  void quantifier() {
    const std::size_t close = in_.find('}', at_);
    const std::string_view all =
        close == std::string_view::npos ? "" : in_.substr(at_, close + 1 - at_);
    const bool counts = all.size() > 2 && std::all_of(all.begin() + 1, all.end() - 1, [](char c) {
                          return c == ',' || (c >= '0' && c <= '9');
                        });
    if (counts && close + 1 < in_.size() && in_[close + 1] == '+') {
      const bool from_one = all == "{1}" || all.starts_with("{1,");
      if (!from_one && !all.starts_with("{0,")) refuse("a repeated repetition");
      out_ += from_one ? '+' : '*';
      at_ = close + 2;
    } else if (counts && all[1] == ',') {  // "{,m}"
      out_ += "{0";
      ++at_;
    } else {
      take();
    }
  }

  std::string_view in_;
  std::string_view where_;
  std::size_t at_ = 0;
  int depth_ = 0;  // nesting depth of classes
  std::string out_;
};

}  // namespace

std::string pcre_of_onig(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace neap::text
