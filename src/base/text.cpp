#include "base/text.h"

#include <algorithm>
#include <cstddef>

#include "base/format.h"
#include "base/utf8.h"

namespace neap {

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

}  // namespace neap
