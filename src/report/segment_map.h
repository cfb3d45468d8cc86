// The segments of a caching allocator at one time, with their live blocks and the gaps between
// them. It shows what pins reserved memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/address_space.h"

namespace neap::report {

struct SegmentMap {
  struct Block {
    std::uint64_t offset = 0;  ///< from the segment's address
    std::uint64_t size = 0;
    std::uint32_t count = 1;  ///< neighbouring small blocks of a layer that were merged
    std::uint16_t layer = 0;
    bool pending_free = false;
  };
  struct Segment {
    std::uint64_t address = 0;
    SegmentRange range;
    std::uint64_t allocated = 0;
    std::vector<Block> blocks;  ///< by offset; bytes without a block are free
  };
  std::string label;  ///< "peak of reserved", "at 3.2 s"
  std::uint64_t time_ns = 0, event = 0;
  std::uint64_t reserved = 0, allocated = 0;
  std::uint64_t largest_gap = 0;  ///< free bytes next to a live block; free segments do not count
  std::uint64_t whole_segments_free = 0;  ///< bytes that empty_cache() would release
  bool joined = false;                    ///< some blocks were merged
  std::vector<Segment> segments;          ///< largest first

  /// Copies the state. With more than `max_blocks` blocks, neighbours of one layer are merged.
  static SegmentMap capture(const AddressSpace& space, std::size_t max_blocks = 30000);
};

}  // namespace neap::report
