#include "text/chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "text/chat/value.h"
#include "text/tokenizer/utf8.h"

namespace neap::chat {
namespace {

namespace utf8 = text::utf8;

// Converts each character with `map`, which appends to its first argument.
template <class Map>
String mapped(std::string_view text, Budget& budget, const Map& map) {
  budget.spend(text.size() / 8);
  String out(budget);
  out.reserve(text.size());
  std::string made;
  while (!text.empty()) {
    const utf8::Point p = utf8::front(text);
    made.clear();
    if (p.value < 0) {
      out += text.substr(0, p.bytes);
    } else {
      map(made, p.value);
      out += made;
    }
    text.remove_prefix(p.bytes);
  }
  return out;
}

void append_upper(std::string& out, std::int32_t c) {
  if (c == 0xdf) {
    out += "SS";
  } else {
    utf8::append(out, utf8proc_toupper(c));
  }
}

// Whether the text begins with white space as in Python, which includes the four separators 1C to
// 1F.
bool is_white(std::string_view text) {
  const std::int32_t c = utf8::front(text).value;
  return utf8::is_space(c) || (c >= 0x1c && c <= 0x1f);
}

// Capitalizes letters at the start and after characters for which `ends_word` is true. Other
// letters become lower case.
Text with_large_initials(std::string_view text, Budget& budget, bool (*ends_word)(std::int32_t)) {
  bool begins = true;
  return mapped(text, budget, [&](std::string& out, std::int32_t c) {
    if (begins) {
      append_upper(out, c);
    } else {
      utf8::append_lower(out, c);
    }
    begins = ends_word(c);
  });
}

}  // namespace

std::size_t characters(std::string_view text, Budget& budget) {
  budget.spend(text.size() / 16);
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(utf8::front(text).bytes);
  return n;
}

std::size_t find_part(std::string_view text, std::string_view part, Budget& budget,
                      std::size_t from) {
  if (from > text.size() || part.size() > text.size() - from) return std::string_view::npos;
  if (part.empty()) return from;
  // string_view::find may compare the whole part at each position.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const std::size_t at =
      found == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  budget.read(std::min(at, text.size()) - from + part.size());
  return at;
}

String reversed_bytes(std::string_view text, Budget& budget) {
  return {text.rbegin(), text.rend(), budget};
}

Text stripped(const Text& text, const Text* set, bool left, bool right, Budget& budget) {
  const auto drops = [&](std::string_view character) {
    return set != nullptr ? find_part(*set, character, budget) != std::string_view::npos
                          : is_white(character);
  };
  std::string_view rest = text;
  std::size_t begin = 0;
  while (left && !rest.empty()) {
    const std::size_t n = utf8::front(rest).bytes;
    if (!drops(rest.substr(0, n))) break;
    rest.remove_prefix(n);
    begin += n;
  }
  while (right && !rest.empty()) {
    std::size_t n = 1;
    while (n < 4 && n < rest.size() &&
           (static_cast<unsigned char>(rest[rest.size() - n]) & 0xc0) == 0x80)
      ++n;
    if (!drops(rest.substr(rest.size() - n))) break;
    rest.remove_suffix(n);
  }
  budget.read(text.size() - rest.size());
  return text.part(begin, rest.size());
}

Text upper(std::string_view text, Budget& budget) {
  return mapped(text, budget, append_upper);
}
Text lower(std::string_view text, Budget& budget) {
  return mapped(text, budget, utf8::append_lower);
}

Text capitalized(std::string_view text, Budget& budget) {
  return with_large_initials(text, budget, [](std::int32_t) { return false; });
}

Text title(std::string_view text, Budget& budget) {
  return with_large_initials(text, budget, [](std::int32_t c) {
    return utf8::is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

Text replaced(const Text& text, std::string_view from, std::string_view to, std::int64_t count,
              Budget& budget) {
  String out(budget);
  std::string_view rest = text;
  if (from.empty()) {  // insert between all characters
    for (; count != 0; --count) {
      budget.spend(1);
      out += to;
      if (rest.empty()) return out;
      const std::size_t n = utf8::front(rest).bytes;
      out += rest.substr(0, n);
      rest.remove_prefix(n);
    }
    out += rest;
    return out;
  }
  for (; count != 0; --count) {
    const std::size_t at = find_part(rest, from, budget);
    if (at == std::string_view::npos) break;
    out += rest.substr(0, at);
    out += to;
    rest.remove_prefix(at + from.size());
  }
  if (rest.size() == text.size()) return text;
  out += rest;
  return out;
}

Text indented(std::string_view text, std::string_view by, bool first, bool blank, Budget& budget) {
  budget.read(text.size());
  String out(budget);
  bool is_first = true;
  for (std::size_t at = 0; at <= text.size();) {
    budget.spend(1);
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (is_first ? first : blank || !line.empty()) out += by;
    out += line;
    if (end < text.size()) out += '\n';
    is_first = false;
    at = end + 1;
  }
  return out;
}

Vector<Text> words(const Text& text, std::int64_t splits, Budget& budget) {
  Vector<Text> made(budget);
  std::string_view rest = text;
  budget.spend(rest.size() / 8);
  // Skips white space if `white`, else characters that are not white space.
  const auto skip = [&](bool white) {
    std::size_t n = 0;
    while (n < rest.size() && is_white(rest.substr(n)) == white)
      n += utf8::front(rest.substr(n)).bytes;
    rest.remove_prefix(n);
    return n;
  };
  for (skip(true); !rest.empty(); skip(true)) {
    const std::size_t begin = text.size() - rest.size();
    made.push_back(text.part(begin, splits-- == 0 ? rest.size() : skip(false)));
    if (made.back().size() == text.size() - begin) break;
  }
  return made;
}

}  // namespace neap::chat
