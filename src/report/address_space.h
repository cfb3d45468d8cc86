// Rebuilds the address space of a caching allocator from recorded events: segments and their live
// blocks.
//
// Sizes     events contain requested bytes. A block's real size follows from the start of its next
//           neighbour: a gap that is too small to be split belongs to the block before it (Layout
//           below).
//
// Threads   the caller locks.
//
// Cost      two tree searches per event; a live block takes 64 bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "cache/settings.h"
#include "trace/recording.h"

namespace neap::report {

struct SegmentRange {
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint8_t pool = 0;
  bool expandable = false;
  bool small_pool = false;
};

struct LiveBlock {
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  std::uint64_t event = 0;    ///< index of the event that created it, or kBeforeTrace
  std::uint16_t layer = 0;    ///< set by the caller: allocating phase
  bool pending_free = false;  ///< freed by the program, but still used by a stream
};
inline constexpr std::uint64_t kBeforeTrace = ~0ull;

class AddressSpace {
 public:
  explicit AddressSpace(cache::Settings settings) : settings_(settings) {}
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  /// Loads the state at the end of a recording from its final segments.
  void load(const trace::DeviceRecording& device);

  void add_segment(std::uint64_t address, const SegmentRange& range);
  /// Removes [address, address+size), which may be part of an expandable segment.
  void remove_segment(std::uint64_t address, std::uint64_t size);
  /// Adds a live block and fills in its size. An older block at the same address is replaced.
  LiveBlock& add_block(std::uint64_t address, std::uint64_t requested);
  [[nodiscard]] LiveBlock* find_block(std::uint64_t address);
  /// Returns the removed block; size 0 if none was there.
  LiveBlock remove_block(std::uint64_t address);

  /// Extends blocks over gaps that are now too small to be split, because rewind() added neighbours
  /// after them.
  void settle_sizes();

  using Segments = std::map<std::uint64_t, SegmentRange>;
  using Blocks = std::pmr::map<std::uint64_t, LiveBlock>;
  [[nodiscard]] const Segments& segments() const { return segments_; }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }
  [[nodiscard]] Blocks& blocks() { return blocks_; }
  [[nodiscard]] std::uint64_t reserved() const { return reserved_; }

 private:
  [[nodiscard]] Segments::const_iterator segment_of(std::uint64_t address) const;
  [[nodiscard]] std::uint64_t block_size(std::uint64_t requested, std::uint64_t address,
                                         std::uint64_t next_block) const;

  cache::Settings settings_;
  std::pmr::unsynchronized_pool_resource nodes_;
  Segments segments_;
  Blocks blocks_{&nodes_};
  std::uint64_t reserved_ = 0;
};

/// Rewinds `space`, which holds the final state, to the time before the first event. The result is
/// exact except for some blocks of the large pool. If a block filled a gap and the gap's other
/// neighbour was freed before the trace began, the file lacks its real size. Its rounded size is
/// used, which is at most 1 MiB less.
void rewind(AddressSpace& space, const trace::DeviceRecording& device);

/// The allocator's settings under which `recording` was made.
[[nodiscard]] cache::Settings settings_of(const trace::Recording& recording);

}  // namespace neap::report
