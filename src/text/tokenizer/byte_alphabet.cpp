#include "text/tokenizer/byte_alphabet.h"

#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {

const std::array<int, 0x144>& bytes_by_point() {
  static const auto kTable = [] {
    std::array<int, 0x144> t{};
    t.fill(-1);
    for (int b = 0; b < 256; ++b)
      t[static_cast<std::size_t>(
          utf8::front(byte_characters()[static_cast<std::size_t>(b)]).value)] = b;
    return t;
  }();
  return kTable;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto kTable = [] {
    std::array<std::string, 256> t;
    std::int32_t next = 0x100;
    for (std::int32_t b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      utf8::append(t[static_cast<std::size_t>(b)], printable ? b : next++);
    }
    return t;
  }();
  return kTable;
}

std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const utf8::Point p = utf8::front(rest);
    const bool known =
        p.value >= 0 && p.value < 0x144 && bytes_by_point()[static_cast<std::size_t>(p.value)] >= 0;
    if (!known) return std::string(token);
    bytes += static_cast<char>(bytes_by_point()[static_cast<std::size_t>(p.value)]);
    rest.remove_prefix(p.bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) token += byte_characters()[static_cast<unsigned char>(c)];
  return token;
}

}  // namespace neap::text
