// One event of memory per record: the common form of PyTorch's snapshots, Neap's traces and live
// runs.
//
// Cost   40 bytes per record. Names (phases, tags, frames) are interned once in a NameTable;
//        records have their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"

namespace neap::trace {

/// Values are part of the file format and never reused.
enum class EventKind : std::uint8_t {
  // Events of the caching allocator, as PyTorch names them.
  kAlloc = 1,  ///< size = requested bytes
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kSegmentAlloc = 4,  ///< size = real bytes
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  kSnapshot = 8,
  kOom = 9,  ///< address = free bytes on the device, size = rounded request
  // Marks:
  kPhaseBegin = 16,  ///< name = phase
  kPhaseEnd = 17,
  kMark = 18,  ///< name = text; the writer may use size
  // Device calls:
  kReserve = 32,
  kUnreserve = 33,
  kCreate = 34,  ///< address = page id
  kRelease = 35,
  kMap = 36,
  kUnmap = 37,
  kCopyToHost = 38,  ///< name = tag
  kCopyToDevice = 39,
  // Events of the arena for all regions of a tag:
  kRegionCreate = 48,  ///< name = tag, size = region bytes
  kRegionDestroy = 49,
  kPause = 50,  ///< name = tag, size = bytes that left the device
  kResume = 51,
  kStore = 52,  ///< size = bytes in the page store after an operation
};

struct Event {
  std::uint64_t time_ns = 0;  ///< since the start of the trace
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint32_t name = 0;  ///< Phase or tag (NameTable id); 0 = none. For events of the caching
                           ///< allocator it is a call stack (id in Recording::stacks).
  std::uint16_t device = 0;
  EventKind kind = EventKind::kMark;
  std::uint8_t pool = 0;  ///< private pool index within the trace; 0 = default pool
  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 40);

/// Interned strings. Threads: the caller locks.
class NameTable {
 public:
  NameTable() { names_.emplace_back(); }
  /// Id of `name`, which is added if it is new. The empty string has id 0.
  std::uint32_t intern(std::string_view name);
  /// Id of `name` if it is known, else 0.
  [[nodiscard]] std::uint32_t find(std::string_view name) const;
  [[nodiscard]] std::string_view name(std::uint32_t id) const {
    return id < names_.size() ? names_[id] : std::string_view();
  }
  [[nodiscard]] std::size_t size() const { return names_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
};

/// Receives live events. It is called under the source's lock, so implementations append and
/// return. Sources leave time_ns zero; the sink sets it.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void record(const Event& event) = 0;
  virtual std::uint32_t intern(std::string_view name) = 0;
};

}  // namespace neap::trace
