// The address space of a caching allocator, rebuilt from recorded events: segments and the blocks
// that live in them.
//
// Sizes     events tell requested bytes; a block's real size follows from where its neighbour
//           begins: a gap too small to be split belongs to the block before it (Layout below).
// Threads   external locking.
// Cost      two tree searches an event; a live block takes 64 bytes.
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
  std::uint64_t event = 0;    ///< index of the event that made it; kBeforeTrace if none did
  std::uint16_t layer = 0;    ///< the caller's: the allocating phase
  bool pending_free = false;  ///< freed by the program, still in use by a stream
};
inline constexpr std::uint64_t kBeforeTrace = ~0ull;

class AddressSpace {
 public:
  explicit AddressSpace(cache::Settings settings) : settings_(settings) {}
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  /// State at the end of a recording, from its final segments.
  void load(const trace::DeviceRecording& device);

  void add_segment(std::uint64_t address, const SegmentRange& range);
  /// Removes [address, address+size), which may be a part of an expandable segment.
  void remove_segment(std::uint64_t address, std::uint64_t size);
  /// Adds a live block and fills in its size. An older block at the same address is replaced.
  LiveBlock& add_block(std::uint64_t address, std::uint64_t requested);
  [[nodiscard]] LiveBlock* find_block(std::uint64_t address);
  /// The block that was there; size 0 if there was none.
  LiveBlock remove_block(std::uint64_t address);

  /// Extends blocks over gaps that became too small to be split, because rewind() added neighbours
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

/// Brings `space`, loaded with the final state, back to the moment before the first event. Exact but
/// for blocks of the large pool that filled a gap whose other neighbour died before the trace began:
/// the file does not hold their real size, and they count as rounded (at most 1 MiB less each).
void rewind(AddressSpace& space, const trace::DeviceRecording& device);

/// The allocator's settings under which `recording` was made.
[[nodiscard]] cache::Settings settings_of(const trace::Recording& recording);

}  // namespace neap::report
