// A whole trace in memory. Readers produce it; replay/ and report/ use it.
//
// Model     One DeviceRecording per device. It has the final segments with their blocks (PyTorch
//           snapshots only) and the events in order, with phase marks merged in by time. All
//           devices share the tables of strings, call stacks and private pools; events have their
//           ids.
//
// Threads   plain data; read-only use from any number of threads.
//
// Cost      40 bytes per event, 32 per block, 48 per segment, 4 per frame of a distinct stack.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/event.h"

namespace neap::trace {

enum class BlockState : std::uint8_t { kAllocated = 0, kPendingFree = 1, kFree = 2 };

/// A block of a segment at the time of the snapshot.
struct Block {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t requested = 0;  ///< requested size; 0 if not recorded; out of date in free blocks
  std::uint32_t stack = 0;      ///< id in Recording::stacks, 0 = none
  BlockState state = BlockState::kFree;
  friend bool operator==(const Block&, const Block&) = default;
};

/// A contiguous mapped range that the allocator held at the time of the snapshot.
struct Segment {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint32_t first_block = 0;  ///< index in DeviceRecording::blocks
  std::uint32_t block_count = 0;
  std::uint32_t stack = 0;
  std::uint8_t pool = 0;  ///< index in Recording::pools
  bool small_pool = false;
  bool expandable = false;
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct DeviceRecording {
  std::uint16_t ordinal = 0;
  std::vector<Segment> segments;  ///< by address
  std::vector<Block> blocks;      ///< by segment, then address
  std::vector<Event> events;      ///< in recorded order; Event::device is `ordinal` in all
  bool has_times = false;         ///< false: the file has no times, and every time_ns is the index
  /// The file says that older events were overwritten in its ring buffer. False does not prove a
  /// complete history; a free without an alloc proves the contrary.
  bool overflowed = false;
  friend bool operator==(const DeviceRecording&, const DeviceRecording&) = default;

  [[nodiscard]] std::span<const Block> blocks_of(const Segment& segment) const {
    return std::span(blocks).subspan(segment.first_block, segment.block_count);
  }
};

/// One line of a call stack. Texts are NameTable ids.
struct Frame {
  std::uint32_t function = 0;
  std::uint32_t file = 0;
  std::uint32_t line = 0;
  friend bool operator==(const Frame&, const Frame&) = default;
};

/// Distinct call stacks, innermost frame first. Id 0 means none.
class StackTable {
 public:
  /// Ids of frames(), innermost first. An unknown id returns an empty stack.
  [[nodiscard]] std::span<const std::uint32_t> stack(std::uint32_t id) const {
    if (id == 0 || id >= ends_.size()) return {};
    return std::span(frame_ids_).subspan(ends_[id - 1], ends_[id] - ends_[id - 1]);
  }
  [[nodiscard]] const Frame& frame(std::uint32_t frame_id) const { return frames_[frame_id]; }
  [[nodiscard]] const std::vector<Frame>& frames() const { return frames_; }
  /// Number of ids, including "none".
  [[nodiscard]] std::size_t size() const { return ends_.size(); }

  /// Appends without searching for duplicates; readers do that.
  std::uint32_t add_frame(const Frame& frame) {
    frames_.push_back(frame);
    return static_cast<std::uint32_t>(frames_.size() - 1);
  }
  std::uint32_t add_stack(std::span<const std::uint32_t> frame_ids) {
    frame_ids_.insert(frame_ids_.end(), frame_ids.begin(), frame_ids.end());
    ends_.push_back(frame_ids_.size());
    return static_cast<std::uint32_t>(ends_.size() - 1);
  }
  /// Heap memory of the stacks, without the frames.
  [[nodiscard]] std::size_t bytes() const {
    return frame_ids_.capacity() * sizeof(std::uint32_t) + ends_.capacity() * sizeof(std::uint64_t);
  }
  /// Calls `change` for every frame.
  template <class Change>
  void for_each_frame(Change change) {
    for (Frame& f : frames_) change(f);
  }
  friend bool operator==(const StackTable&, const StackTable&) = default;

 private:
  std::vector<Frame> frames_;
  std::vector<std::uint32_t> frame_ids_;
  std::vector<std::uint64_t> ends_{0};
};

/// Content of `allocator_settings` in a snapshot. Defaults are PyTorch's.
struct RecordedSettings {
  bool present = false;              ///< false: no settings in the file, only defaults
  std::string conf;                  ///< PYTORCH_CUDA_ALLOC_CONF as set
  std::int64_t max_split_size = -1;  ///< bytes; -1 = unlimited
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  /// For 1 MB, 2 MB, ... 32768 MB, as PyTorch stores them; 0 = off.
  std::array<std::uint32_t, 16> roundup_power2_divisions{};
  std::uint64_t trace_alloc_max_entries = 0;  ///< 0 = not recorded
  std::string json;                           ///< every key and value as recorded
  friend bool operator==(const RecordedSettings&, const RecordedSettings&) = default;
};

enum class Source : std::uint8_t { kTorchSnapshot = 1, kNeap = 2 };

struct Recording {
  Source source = Source::kNeap;
  /// By ordinal. Only devices with segments or events.
  std::vector<DeviceRecording> devices;
  NameTable names;
  StackTable stacks;
  /// Private pools by the index in events and segments: PyTorch's (owner, id) pairs. Entry 0 is the
  /// default pool (0, 0). The last index (255) means all later ones.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pools{{0, 0}};
  RecordedSettings settings;
  /// Keys and values that trace/ does not interpret: "environment", "plan" (JSON) and others.
  std::vector<std::pair<std::string, std::string>> metadata;
  /// Wall clock at time_ns 0, since the Unix epoch; 0 if unknown.
  std::uint64_t start_unix_ns = 0;
  /// Number of events that the writer dropped because its buffer was full. Unless it is 0,
  /// addresses may not match.
  std::uint64_t dropped_events = 0;
  /// Set if the file ends early (killed writer, incomplete copy): a description of the loss for
  /// people.
  std::string truncated;
  /// Irregularities that did not stop the reader, one sentence each.
  std::vector<std::string> warnings;

  [[nodiscard]] std::uint64_t event_count() const {
    std::uint64_t n = 0;
    for (const DeviceRecording& d : devices) n += d.events.size();
    return n;
  }
  /// The metadata value of `key`, or empty.
  [[nodiscard]] std::string_view metadata_value(std::string_view key) const {
    for (const auto& [k, v] : metadata)
      if (k == key) return v;
    return {};
  }
};

/// True for the kinds whose Event::name is a stack (PyTorch's allocator events). For all others it
/// is a NameTable id.
[[nodiscard]] constexpr bool names_a_stack(EventKind kind) {
  return kind >= EventKind::kAlloc && kind <= EventKind::kOom;
}

}  // namespace neap::trace
