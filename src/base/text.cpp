#include "base/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/format.h"

namespace neap {
namespace {

/// Bytes of the character that `text` begins with, 0 where it is not UTF-8 (RFC 3629: no overlong
/// forms, no surrogates, at most U+10FFFF).
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xC2   ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (next & 0x3Fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code >= kLeast[length] && !surrogate && code <= 0x10FFFF ? length : 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Status check_not_utf16(std::string_view text, std::string_view where) {
  if (!text.starts_with("\xFF\xFE") && !text.starts_with("\xFE\xFF")) return {};
  return {ErrorCode::kCorrupt,
          format("{}: the file is UTF-16, as its byte-order mark says, and UTF-8 is read. "
                 "`iconv -f UTF-16 -t UTF-8 IN > OUT` converts it",
                 where)};
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const auto code = static_cast<unsigned char>(text[0]);
    if (text[0] == '\n')
      out += "\\n";
    else if (text[0] == '\t')
      out += "\\t";
    else if (length == 0 || code < 0x20 || code == 0x7F)
      out += format("\\x{:02x}", code);
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace neap
