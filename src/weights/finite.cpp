#include "weights/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace neap::weights {
namespace {

// An element is NaN or infinite if all bits of its exponent are set.
template <class Bits>
bool exponents_are_below(std::span<const std::byte> bytes, Bits exponent) {
  constexpr std::size_t kAtOnce = 4096;  // elements are copied, because bytes need not be aligned
  Bits part[kAtOnce];
  for (std::size_t at = 0; at < bytes.size(); at += sizeof part) {
    const std::size_t size = std::min(bytes.size() - at, sizeof part);
    std::memcpy(part, bytes.data() + at, size);
    unsigned found = 0;
    for (std::size_t i = 0; i < size / sizeof(Bits); ++i)
      found |= static_cast<unsigned>((part[i] & exponent) == exponent);
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool all_finite(std::string_view dtype, std::span<const std::byte> bytes) {
  if (dtype == "BF16") return exponents_are_below<std::uint16_t>(bytes, 0x7f80);
  if (dtype == "F16") return exponents_are_below<std::uint16_t>(bytes, 0x7c00);
  if (dtype == "F32") return exponents_are_below<std::uint32_t>(bytes, 0x7f800000);
  if (dtype == "F64") return exponents_are_below<std::uint64_t>(bytes, 0x7ff0000000000000);
  return true;
}

}  // namespace neap::weights
