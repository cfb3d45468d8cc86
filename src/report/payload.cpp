#include "report/payload.h"

#include <numeric>

#include "report/png.h"

namespace neap::report {

void Payload::add(std::string_view name, std::span<const std::uint64_t> values) {
  std::uint64_t unit = 0;
  for (const std::uint64_t value : values) {
    unit = std::gcd(unit, value);
    if (unit == 1) break;
  }
  if (unit == 0) unit = 1;
  std::uint64_t before = 0;
  for (const std::uint64_t value : values) {
    const std::uint64_t scaled = value / unit;
    const std::uint64_t difference = scaled - before;  // modulo 2^64; the page adds in the same way
    before = scaled;
    const auto negative = static_cast<std::uint64_t>(-static_cast<std::int64_t>(difference >> 63));
    std::uint64_t zigzag = (difference << 1) ^ negative;
    for (; zigzag >= 0x80; zigzag >>= 7) bytes_.push_back(static_cast<char>(zigzag | 0x80));
    bytes_.push_back(static_cast<char>(zigzag));
  }
  columns_.push_back({{"name", name}, {"unit", unit}, {"count", values.size()}});
}

Result<std::string> Payload::to_base64() const {
  NEAP_TRY_ASSIGN(const std::string packed, deflate(bytes_));
  return base64(packed);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      out.push_back(i + j <= bytes.size() ? kDigits[(group >> (18 - 6 * j)) & 63u] : '=');
  }
  return out;
}

}  // namespace neap::report
