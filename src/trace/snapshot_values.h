// Data types of the snapshot reader's stack machine: 8-byte values, interned text, tables of ids.
//
// Cost   nothing here allocates per value; text is stored once.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace neap::trace::snapshot {

enum class Tag : std::uint8_t {
  kUnset,  // an unused memo slot
  kNone,
  kFalse,
  kTrue,
  kInt,     // the payload is a signed integer of 56 bits
  kWide,    // index of a signed 64-bit integer
  kBig,     // index of an unsigned integer above the signed range
  kHuge,    // an integer that does not fit in 64 bits
  kReal,    // index of a double
  kText,    // text id
  kOpaque,  // bytes or text that no reader needs
  kNode,    // index into nodes: a container that may be shared and may still grow
  // Contents of a node:
  kEmptyDict,
  kOpenDict,
  kEmptyList,
  kOpenList,
  kEvent,
  kBlock,
  kSegment,
  kFrame,
  kAnnotation,
  kHistory,
  kStack,
  kPool,
  kList,
  kDict,
};

/// A tag and 56 bits.
class Value {
 public:
  constexpr Value() = default;
  constexpr Value(Tag tag, std::uint64_t payload)
      : bits_(static_cast<std::uint64_t>(tag) << 56 | (payload & kPayload)) {}
  [[nodiscard]] constexpr Tag tag() const { return static_cast<Tag>(bits_ >> 56); }
  [[nodiscard]] constexpr std::uint64_t payload() const { return bits_ & kPayload; }
  /// The payload as a signed number.
  [[nodiscard]] constexpr std::int64_t number() const {
    return static_cast<std::int64_t>(bits_ << 8) >> 8;
  }
  [[nodiscard]] static constexpr bool fits(std::int64_t n) {
    return n >= -(std::int64_t{1} << 55) && n < (std::int64_t{1} << 55);
  }

 private:
  static constexpr std::uint64_t kPayload = (std::uint64_t{1} << 56) - 1;
  std::uint64_t bits_ = 0;
};
static_assert(sizeof(Value) == 8);

/// Text with a meaning in the format. The id of such text is its enumerator.
enum class Word : std::uint32_t {
  kEmpty,
  // Keys that determine the kind of a dict:
  kAction,
  kTotalSize,
  kState,
  kFilename,
  kStage,
  kRealSize,
  // Other keys:
  kAddr,
  kAddress,
  kSize,
  kRequestedSize,
  kStream,
  kTimeUs,
  kFrames,
  kPoolId,
  kDeviceFree,
  kUserMetadata,
  kDevice,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kBlocks,
  kHistory,
  kLine,
  kName,
  kSegments,
  kDeviceTraces,
  kAllocatorSettings,
  kExternalAnnotations,
  // Actions:
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOom,
  kAnnotate,
  // States, stages, types:
  kActiveAllocated,
  kActivePendingFree,
  kActiveAwaitingFree,
  kInactive,
  kStart,
  kEnd,
  kSmall,
  kLarge,
  kCount,
};
inline constexpr std::array<std::string_view, static_cast<std::size_t>(Word::kCount)> kWords{
    "",
    "action",
    "total_size",
    "state",
    "filename",
    "stage",
    "real_size",
    "addr",
    "address",
    "size",
    "requested_size",
    "stream",
    "time_us",
    "frames",
    "pool_id",
    "device_free",
    "user_metadata",
    "device",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
    "history",
    "line",
    "name",
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "active_allocated",
    "active_pending_free",
    "active_awaiting_free",
    "inactive",
    "START",
    "END",
    "small",
    "large"};

/// A hash table of ids. Their keys are stored elsewhere.
class IdSet {
 public:
  /// Returns the id among those of `hash` for which `same(id)` is true. Otherwise adds and returns
  /// the result of `make()`.
  template <class Same, class Make>
  std::uint32_t find_or_add(std::uint64_t hash, Same same, Make make) {
    if (count_ * 2 >= slots_.size()) grow();
    const auto h = static_cast<std::uint32_t>(hash >> 32);
    std::size_t at = h & mask_;
    while (slots_[at].id != kFree) {
      if (slots_[at].hash == h && same(slots_[at].id)) return slots_[at].id;
      at = (at + 1) & mask_;
    }
    slots_[at] = {h, make()};
    ++count_;
    return slots_[at].id;
  }
  [[nodiscard]] std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t id = kFree;
  };
  void grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(old.empty() ? 1024 : old.size() * 2, Slot{});
    mask_ = slots_.size() - 1;
    for (const Slot& s : old) {
      if (s.id == kFree) continue;
      std::size_t at = s.hash & mask_;
      while (slots_[at].id != kFree) at = (at + 1) & mask_;
      slots_[at] = s;
    }
  }
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
  std::size_t mask_ = 0;
};

/// Seeded once per process, so that no file can provoke collisions.
class Hasher {
 public:
  Hasher();
  [[nodiscard]] std::uint64_t operator()(const void* bytes, std::size_t size) const {
    const auto* p = static_cast<const unsigned char*>(bytes);
    std::uint64_t h = mix(seed_ ^ size, kOdd);
    while (size > 8) {
      h = mix(h ^ word(p, 8), kOdd);
      p += 8;
      size -= 8;
    }
    return mix(mix(h ^ word(p, size), kOdd) ^ seed_, kOdd2);
  }

 private:
  static constexpr std::uint64_t kOdd = 0x9FB21C651E98DF25ULL;
  static constexpr std::uint64_t kOdd2 = 0xD6E8FEB86659FD93ULL;
  static std::uint64_t word(const unsigned char* p, std::size_t n) {
    std::uint64_t w = 0;
    std::memcpy(&w, p, n);
    return w;
  }
  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::uint64_t seed_;
};

class TextTable {
 public:
  TextTable();
  std::uint32_t intern(std::string_view text) {
    return set_.find_or_add(
        hash_(text.data(), text.size()), [&](std::uint32_t id) { return this->text(id) == text; },
        [&] { return add(text); });
  }
  [[nodiscard]] std::string_view text(std::uint32_t id) const {
    return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
  }
  [[nodiscard]] std::size_t size() const { return begins_.size() - 1; }
  [[nodiscard]] std::size_t bytes() const {
    return bytes_.capacity() + begins_.capacity() * sizeof(std::uint64_t) + set_.bytes();
  }

 private:
  std::uint32_t add(std::string_view text) {
    bytes_.append(text);
    begins_.push_back(bytes_.size());
    return static_cast<std::uint32_t>(begins_.size() - 2);
  }
  Hasher hash_;
  IdSet set_;
  std::string bytes_;
  std::vector<std::uint64_t> begins_{0};
};

}  // namespace neap::trace::snapshot
