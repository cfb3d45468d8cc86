// A map from pairs of token ids with open addressing: the hot lookup of BPE.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace neap::text {

/// The number of pairs is known in advance. Threads: const calls from any thread.
template <class Value>
class PairTable {
 public:
  PairTable() : PairTable(0) {}
  explicit PairTable(std::size_t pairs)
      : slots_(std::bit_ceil(std::max<std::size_t>(16, pairs * 2)), Slot{kFree, {}}),
        mask_(slots_.size() - 1) {}

  /// The caller adds at most the announced number of pairs.
  void put(std::int32_t left, std::int32_t right, Value value) {
    const std::uint64_t key = key_of(left, right);
    std::size_t at = start(key);
    while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, value};
  }
  [[nodiscard]] const Value* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t at = start(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].value;
      if (slots_[at].key == kFree) return nullptr;
    }
  }
  bool operator==(const PairTable&) const = default;

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key;
    Value value;
    bool operator==(const Slot&) const = default;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t start(std::uint64_t key) const {
    std::uint64_t x = key ^ key >> 32;
    x *= 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) & mask_;
  }
  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace neap::text
