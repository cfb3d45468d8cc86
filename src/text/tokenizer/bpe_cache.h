// Caches the ids of short pieces, in a table of fixed size where a newer piece replaces an older
// one. Not thread-safe; each call of Bpe::encode leases one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace neap::text {

class BpeCache {
 public:
  static constexpr std::size_t kMaxBytes = 55;
  static constexpr std::size_t kMaxIds = 16;

  /// A piece of at most kMaxBytes, and its slot.
  struct Key {
    std::uint64_t words[7];
    std::size_t slot;
  };
  [[nodiscard]] static Key key_of(std::string_view piece) {
    Key key{};
    if (!piece.empty()) std::memcpy(key.words, piece.data(), piece.size());
    // The last byte stores the length + 1. The length distinguishes pieces that differ only by
    // trailing zero bytes. The + 1 distinguishes the empty piece from a free slot.
    key.words[6] |= static_cast<std::uint64_t>(piece.size() + 1) << 56;
    std::uint64_t hash = 0;
    for (const std::uint64_t word : key.words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    key.slot = static_cast<std::size_t>(hash >> (64 - kSlotBits));
    return key;
  }
  /// The `count` ids of the piece, or nullptr.
  [[nodiscard]] const std::int32_t* find(const Key& key, std::size_t& count) const {
    const Slot& slot = slots_[key.slot];
    if (std::memcmp(slot.words, key.words, sizeof slot.words) != 0) return nullptr;
    count = slot.count;
    return slot.ids;
  }
  void put(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[key.slot];
    std::memcpy(slot.words, key.words, sizeof slot.words);
    std::copy(ids.begin(), ids.end(), slot.ids);
    slot.count = static_cast<std::uint32_t>(ids.size());
  }

 private:
  static constexpr unsigned kSlotBits = 14;  // x 128 bytes = 2 MiB, which stays in a core's cache
  struct alignas(64) Slot {
    std::uint64_t words[7];
    std::int32_t ids[kMaxIds];
    std::uint32_t count;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(std::size_t{1} << kSlotBits);
};

}  // namespace neap::text
