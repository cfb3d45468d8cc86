#include "model/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "base/status.h"

namespace neap::model::utf8 {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}
bool is_continuation(unsigned byte) {
  return (byte & 0xc0) == 0x80;
}
bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

Point front(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80) return {static_cast<std::int32_t>(lead), 1, false};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {-1, 1, false};
  // The second byte's range keeps out overlong forms, surrogates and points over 10FFFF.
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  auto value = static_cast<std::int32_t>(lead & (0xffu >> (length + 1)));
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {-1, i, true};
    const unsigned byte = byte_at(text, i);
    const bool fits = i == 1 ? byte >= low && byte <= high : is_continuation(byte);
    if (!fits) return {-1, i, false};
    value = value << 6 | static_cast<std::int32_t>(byte & 0x3f);
  }
  return {value, length, false};
}

void append(std::string& out, std::int32_t point) {
  utf8proc_uint8_t buffer[4];
  const auto n = utf8proc_encode_char(point, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(n));
}

bool is_valid(std::string_view text) {
  while (!text.empty()) {
    const Point p = front(text);
    if (p.value < 0) return false;
    text.remove_prefix(p.bytes);
  }
  return true;
}

std::size_t append_lossy(std::string& out, std::string_view bytes, bool final) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Point p = front(bytes.substr(at));
    if (p.value < 0) {
      if (p.cut && !final) break;
      out += "\xef\xbf\xbd";
    } else {
      out.append(bytes.substr(at, p.bytes));
    }
    at += p.bytes;
  }
  return at;
}

bool is_space(std::int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(std::int32_t c) {
  if (c < 0) return false;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200c || c == 0x200d;
  }
}

std::size_t leading_space(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const Point p = front(text.substr(n));
    if (!is_space(p.value)) break;
    n += p.bytes;
  }
  return n;
}

namespace {
std::size_t back_begin(std::string_view text) {
  std::size_t at = text.size();
  do --at;
  while (at > 0 && text.size() - at < 4 && is_continuation(byte_at(text, at)));
  return at;
}
}  // namespace

std::int32_t back(std::string_view text) {
  if (text.empty()) return -1;
  const std::size_t at = back_begin(text);
  const Point p = front(text.substr(at));
  return p.bytes == text.size() - at ? p.value : -1;
}

std::size_t trailing_space(std::string_view text) {
  const std::size_t whole = text.size();
  while (!text.empty() && is_space(back(text))) text = text.substr(0, back_begin(text));
  return whole - text.size();
}

std::string normalize(std::string_view text, Form form) {
  if (is_ascii(text) || !is_valid(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == Form::kNfc || form == Form::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &out,
                              static_cast<utf8proc_option_t>(options));
  if (n < 0)
    throw Error(ErrorCode::kInternal,
                std::string("Unicode normalization failed: ") + utf8proc_errmsg(n));
  std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(n));
  std::free(out);  // NOLINT: the library's contract
  return result;
}

}  // namespace neap::model::utf8
