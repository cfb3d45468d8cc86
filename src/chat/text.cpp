#include "chat/text.h"

#include <utf8proc.h>

#include "chat/value.h"
#include "model/utf8.h"

namespace neap::chat {
namespace {

namespace utf8 = model::utf8;

// The text with each character changed by `map`, which appends to its first argument.
template <class Map>
std::string mapped(std::string_view text, const Map& map) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const utf8::Point p = utf8::front(text);
    if (p.value < 0) {
      out += text.substr(0, p.bytes);
    } else {
      map(out, p.value);
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

}  // namespace

std::size_t characters(std::string_view text) {
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(utf8::front(text).bytes);
  return n;
}

std::string stripped(std::string_view text, const std::string* set, bool left, bool right) {
  // Python's white space has the four separators 1C to 1F too.
  const auto drops = [&](std::string_view character) {
    if (set != nullptr) return set->find(character) != std::string::npos;
    const std::int32_t c = utf8::front(character).value;
    return utf8::is_space(c) || (c >= 0x1c && c <= 0x1f);
  };
  while (left && !text.empty()) {
    const std::size_t n = utf8::front(text).bytes;
    if (!drops(text.substr(0, n))) break;
    text.remove_prefix(n);
  }
  while (right && !text.empty()) {
    std::size_t n = 1;
    while (n < 4 && n < text.size() &&
           (static_cast<unsigned char>(text[text.size() - n]) & 0xc0) == 0x80)
      ++n;
    if (!drops(text.substr(text.size() - n))) break;
    text.remove_suffix(n);
  }
  return std::string(text);
}

std::string upper(std::string_view text) {
  return mapped(text, append_upper);
}
std::string lower(std::string_view text) {
  return mapped(text, utf8::append_lower);
}
std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  const std::size_t n = utf8::front(text).bytes;
  return upper(text.substr(0, n)) + lower(text.substr(n));
}

std::string title(std::string_view text) {
  bool begins = true;
  return mapped(text, [&](std::string& out, std::int32_t c) {
    if (begins) {
      append_upper(out, c);
    } else {
      utf8::append_lower(out, c);
    }
    begins = utf8::is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::int64_t count) {
  std::string out;
  const auto put = [&] {
    if (out.size() > kMaxText) fail("replace: the text is too long");
    --count;
    out += to;
  };
  if (from.empty()) {  // between all characters
    while (count != 0) {
      put();
      if (text.empty()) return out;
      const std::size_t n = utf8::front(text).bytes;
      out += text.substr(0, n);
      text.remove_prefix(n);
    }
    return out += text;
  }
  while (count != 0) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    put();
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

std::string indented(std::string_view text, std::string_view by, bool first, bool blank) {
  std::string out;
  bool is_first = true;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (is_first ? first : blank || !line.empty()) out += by;
    out += line;
    if (out.size() > kMaxText) fail("indent: the text is too long");
    if (end < text.size()) out += '\n';
    is_first = false;
    at = end + 1;
  }
  return out;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> made;
  while (true) {
    text.remove_prefix(utf8::leading_space(text));
    if (text.empty()) return made;
    std::size_t n = 0;
    while (n < text.size() && !utf8::is_space(utf8::front(text.substr(n)).value))
      n += utf8::front(text.substr(n)).bytes;
    made.emplace_back(text.substr(0, n));
    text.remove_prefix(n);
  }
}

}  // namespace neap::chat
