#include "base/tag.h"

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

Status check_tag(std::string_view tag) {
  if (tag.empty()) return {ErrorCode::kInvalidArgument, "A tag is needed: its name is empty"};
  while (!tag.empty()) {
    const std::size_t length = character_length(tag);
    if (length == 0) return {ErrorCode::kInvalidArgument, "A tag is not UTF-8"};
    tag.remove_prefix(length);
  }
  return {};
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (code < 0x20 || code == 0x7F)
      out += format("\\x{:02x}", code);
    else
      out += c;
  }
  return out;
}

}  // namespace neap
