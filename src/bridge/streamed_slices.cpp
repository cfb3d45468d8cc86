#include "bridge/streamed_slices.h"

#include <utility>

namespace neap::bridge {

StreamedSlices::StreamedSlices(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots, Bytes slice,
                               step::StreamedKind kind)
    : slots_(std::move(slots)),
      slice_(value_or_throw(arena::HostStorage::make(arena, tag, slice))),
      kind_(kind),
      lane_(arena, computes, slots_.size()) {}

Status StreamedSlices::fetch(std::size_t slot, const SlotPart& part, const Range& range) {
  if (range.size.is_zero()) return {};
  const arena::Transfer copy = transfer(part, range);
  return lane_.fetch(slot, kind_, {&copy, 1}, SlotLane::After::kStoreOfSlot);
}

Status StreamedSlices::store(std::size_t slot, const Range& range) {
  const arena::Transfer copy = transfer(slots_[slot], range);
  return lane_.store(slot, kind_, {&copy, 1});
}

}  // namespace neap::bridge
