// UTF-8 (RFC 3629). Inline, because tokenizers call it for every character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace neap {

struct Utf8Point {
  std::int32_t value = -1;  ///< -1: the bytes here are not UTF-8
  std::size_t bytes = 0;  ///< bytes of the code point; if not UTF-8, bytes that one U+FFFD replaces
  bool cut = false;       ///< not UTF-8 only because the text ends too early
};

/// The code point at the front of a non-empty text.
[[nodiscard]] inline Utf8Point utf8_front(std::string_view text) {
  const auto byte_at = [&](std::size_t i) -> unsigned {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned lead = byte_at(0);
  if (lead < 0x80) return {static_cast<std::int32_t>(lead), 1, false};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {-1, 1, false};
  // The range of the second byte excludes overlong forms, surrogates and code points over 10FFFF.
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  auto value = static_cast<std::int32_t>(lead & (0xffu >> (length + 1)));
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {-1, i, true};
    const unsigned byte = byte_at(i);
    const bool fits = i == 1 ? byte >= low && byte <= high : (byte & 0xc0) == 0x80;
    if (!fits) return {-1, i, false};
    value = value << 6 | static_cast<std::int32_t>(byte & 0x3f);
  }
  return {value, length, false};
}

/// Number of ASCII bytes at the front.
[[nodiscard]] inline std::size_t ascii_prefix(std::string_view text) {
  std::size_t n = 0;
  for (std::uint64_t word; n + sizeof word <= text.size(); n += sizeof word) {
    std::memcpy(&word, text.data() + n, sizeof word);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (n < text.size() && static_cast<unsigned char>(text[n]) < 0x80) ++n;
  return n;
}

[[nodiscard]] inline bool is_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Point point = utf8_front(text);
    if (point.value < 0) return false;
    text.remove_prefix(point.bytes);
  }
}

}  // namespace neap
