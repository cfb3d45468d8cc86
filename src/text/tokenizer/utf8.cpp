#include "text/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "text/tokenizer/unicode_tables.h"

namespace neap::text::utf8 {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}
bool is_continuation(unsigned byte) {
  return (byte & 0xc0) == 0x80;
}

}  // namespace

void append(std::string& out, std::int32_t point) {
  utf8proc_uint8_t buffer[4];
  const auto n = utf8proc_encode_char(point, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(n));
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

namespace {
template <std::size_t N>
bool is_in(const unicode::PointRange (&table)[N], std::int32_t c) {
  const auto* after = std::upper_bound(std::begin(table), std::end(table), c,
                                       [](std::int32_t p, const auto& r) { return p < r.first; });
  return after != std::begin(table) && c <= std::prev(after)->last;
}
}  // namespace

bool is_word(std::int32_t c) {
  return is_in(unicode::kWord, c);
}
bool is_numeric(std::int32_t c) {
  return is_in(unicode::kNumeric, c);
}
bool is_punctuation(std::int32_t c) {
  return is_in(unicode::kPunctuation, c);
}

void append_lower(std::string& out, std::int32_t c) {
  if (c == 0x130) {  // the only character whose lower case has two
    out += "i\xcc\x87";
    return;
  }
  const auto* row = std::lower_bound(std::begin(unicode::kLower), std::end(unicode::kLower), c,
                                     [](const auto& r, std::int32_t p) { return r.first < p; });
  append(out, row != std::end(unicode::kLower) && row->first == c ? row->last : c);
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

namespace {
void normalize_run(std::string& out, std::string_view text, Form form) {
  int options = UTF8PROC_STABLE;
  options |= form == Form::kNfc || form == Form::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &made,
                              static_cast<utf8proc_option_t>(options));
  if (n < 0)
    throw Error(ErrorCode::kInternal,
                std::string("Unicode normalization failed: ") + utf8proc_errmsg(n));
  out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(n));
  std::free(made);  // NOLINT: the library's contract
}
}  // namespace

std::string normalize(std::string_view text, Form form) {
  std::string out;
  if (!is_utf8(text)) return std::string(text);
  out.reserve(text.size());
  while (!text.empty()) {
    // No form changes ASCII. Only its last character may combine with what follows.
    std::size_t same = ascii_prefix(text);
    if (same < text.size() && same > 0) --same;
    // Text that no form changes separates the parts around it. The library's Unicode version is
    // newer than the reference's, so pass only the remaining parts to the library.
    std::size_t run = same;
    for (bool ascii = false; run < text.size();) {
      const Point p = front(text.substr(run));
      const bool was_ascii = std::exchange(ascii, p.value < 0x80);
      if (ascii ? was_ascii : !is_in(unicode::kNormalized, p.value)) {
        if (was_ascii) --run;  // between two ASCII characters, or before a separating one
        break;
      }
      run += p.bytes;
    }
    out += text.substr(0, same);
    text.remove_prefix(same);
    run -= same;
    if (run > 0) normalize_run(out, text.substr(0, run), form);
    text.remove_prefix(run);
    if (run > 0 || text.empty() || same > 0) continue;
    const std::size_t bytes = front(text).bytes;
    out += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace neap::text::utf8
