// Random numbers as a function of their purpose. No state has to be saved. A run that resumes or
// batches differently draws the same numbers.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace neap {

/// One step of splitmix64: every input bit affects every output bit.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A key for a purpose, made from seed, epoch, sequence and so on.
[[nodiscard]] constexpr std::uint64_t random_key(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t key = 0;
  for (const std::uint64_t part : parts) key = mix(key ^ mix(part));
  return key;
}

/// Number `index` of the stream `key`, uniform in [0, 1) with 23 bits. It is exact in float32. It
/// stays below 1 by more than a rounding error when multiplied by a float32 sum.
[[nodiscard]] constexpr float uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<float>(mix(key + index * 0xd1342543de82ef95ULL) >> 41) * 0x1.0p-23F;
}

}  // namespace neap
