#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/utf8.h"

namespace neap {
namespace {

// Unicode blocks whose characters are wide (East Asian Width W and F) or combine with the previous
// one. The table is coarse: a missing block shifts the end of a line by a column.
constexpr std::array<std::pair<std::int32_t, std::int32_t>, 11> kWide = {{{0x1100, 0x115F},
                                                                          {0x2E80, 0x303E},
                                                                          {0x3041, 0xA4CF},
                                                                          {0xA960, 0xA97F},
                                                                          {0xAC00, 0xD7A3},
                                                                          {0xF900, 0xFAFF},
                                                                          {0xFE30, 0xFE6F},
                                                                          {0xFF00, 0xFF60},
                                                                          {0xFFE0, 0xFFE6},
                                                                          {0x1F300, 0x1FAFF},
                                                                          {0x20000, 0x3FFFD}}};
constexpr std::array<std::pair<std::int32_t, std::int32_t>, 6> kCombining = {{{0x0300, 0x036F},
                                                                              {0x200B, 0x200F},
                                                                              {0x20D0, 0x20FF},
                                                                              {0xFE00, 0xFE0F},
                                                                              {0xFE20, 0xFE2F},
                                                                              {0xE0100, 0xE01EF}}};

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

struct Character {
  std::size_t bytes, columns;
};
Character front(std::string_view text) {
  const Utf8Point point = utf8_front(text);
  const auto in = [&](const auto& ranges) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
      return range.first <= point.value && point.value <= range.second;
    });
  };
  const std::size_t bytes = std::max<std::size_t>(point.bytes, 1);
  if (point.value < 0x300) return {bytes, 1};
  return {bytes, in(kCombining) ? 0U : in(kWide) ? 2U : 1U};
}

}  // namespace

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
    const Utf8Point point = utf8_front(text);
    const std::size_t length = point.value < 0 ? 0 : point.bytes;
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

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character next = front(text);
    columns += next.columns;
    text.remove_prefix(next.bytes);
  }
  return columns;
}

std::size_t bytes_of_columns(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0, used = 0;
  while (bytes < text.size()) {
    const Character next = front(text.substr(bytes));
    if (bytes > 0 && used + next.columns > columns) break;
    used += next.columns;
    bytes += next.bytes;
  }
  return bytes;
}

std::string_view front_of(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  // A character has at most three bytes after its first; more are not UTF-8.
  std::size_t end = bytes;
  for (int i = 0; i < 3 && end > 0 && is_continuation(text[end]); ++i) --end;
  return text.substr(0, is_continuation(text[end]) ? bytes : end);
}

std::string excerpt(std::string_view text, std::size_t bytes) {
  std::string out(front_of(text, bytes));
  if (out.size() < text.size()) out += "...";
  return out;
}

std::string shortened(std::string_view text, std::size_t columns) {
  constexpr std::string_view kGap = " ... ";
  const std::size_t all = columns_of(text);
  if (all <= columns) return std::string(text);
  if (columns <= kGap.size() + 2)
    return std::string(text.substr(0, bytes_of_columns(text, columns)));
  const std::size_t tail = (columns - kGap.size()) / 2;
  const std::size_t head = columns - kGap.size() - tail;
  std::string out(text.substr(0, bytes_of_columns(text, head)));
  out += kGap;
  std::size_t skipped = bytes_of_columns(text, all - tail);
  while (skipped < text.size() && columns_of(text.substr(skipped)) > tail)
    skipped += front(text.substr(skipped)).bytes;
  return out + std::string(text.substr(skipped));
}

std::string joined(std::span<const std::string> parts, std::string_view between) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != parts.data()) out += between;
    out += part;
  }
  return out;
}

std::string joined(std::span<const std::int64_t> numbers, std::string_view between) {
  std::vector<std::string> words;
  for (const std::int64_t number : numbers) words.push_back(std::to_string(number));
  return joined(words, between);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace neap
