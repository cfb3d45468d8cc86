#include "report/segment_map.h"

#include <algorithm>

namespace neap::report {

SegmentMap SegmentMap::capture(const AddressSpace& space, std::size_t max_blocks) {
  SegmentMap map;
  map.joined = space.blocks().size() > max_blocks;
  auto block = space.blocks().begin();
  for (const auto& [address, range] : space.segments()) {
    Segment segment;
    segment.address = address;
    segment.range = range;
    std::uint64_t end = 0;  // of the previous block
    while (block != space.blocks().end() && block->first < address) ++block;  // outside segments
    for (; block != space.blocks().end() && block->first < address + range.size; ++block) {
      const LiveBlock& live = block->second;
      const std::uint64_t offset = block->first - address;
      map.largest_gap = std::max(map.largest_gap, offset - std::min(offset, end));
      const bool join = map.joined && !segment.blocks.empty() && end == offset &&
                        segment.blocks.back().layer == live.layer &&
                        segment.blocks.back().pending_free == live.pending_free;
      if (join) {
        segment.blocks.back().size += live.size;
        ++segment.blocks.back().count;
      } else {
        segment.blocks.push_back({offset, live.size, 1, live.layer, live.pending_free});
      }
      end = offset + live.size;
      segment.allocated += live.size;
    }
    if (segment.blocks.empty())
      map.whole_segments_free += range.size;  // a free segment is not a gap
    else
      map.largest_gap = std::max(map.largest_gap, range.size - std::min(range.size, end));
    map.reserved += range.size;
    map.allocated += segment.allocated;
    map.segments.push_back(std::move(segment));
  }
  std::stable_sort(map.segments.begin(), map.segments.end(),
                   [](const auto& a, const auto& b) { return a.range.size > b.range.size; });
  return map;
}

}  // namespace neap::report
