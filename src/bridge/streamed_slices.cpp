#include "bridge/streamed_slices.h"

#include <utility>

namespace neap::bridge {

StreamedSlices::StreamedSlices(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots, Bytes slice)
    : slots_(std::move(slots)),
      slice_(value_or_throw(arena::HostStorage::make(arena, tag, slice))),
      lane_(arena, computes, slots_.size()) {}

Status StreamedSlices::fetch(std::size_t slot, const SlotPart& part, const Range& range) {
  if (range.size.is_zero()) return {};
  const arena::Transfer copy{part.region, part.offset + range.to, slice_.get(), range.from,
                             range.size};
  return lane_.fetch(slot, step::StreamedKind::kWeights, {&copy, 1}, SlotLane::After::kNothing);
}

}  // namespace neap::bridge
