#include "bridge/streamed_slices.h"

#include <utility>

#include "step/update_parts.h"

namespace neap::bridge {

StreamedSlices::StreamedSlices(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots, Bytes slice,
                               step::StreamedKind kind, Bytes window)
    : slots_(std::move(slots)),
      kind_(kind),
      window_(window),
      lane_(arena, computes, slots_.size()),
      leaving_(slots_.size()) {
  const auto make = [&](Bytes bytes) {
    return value_or_throw(arena::HostStorage::make(arena, tag, bytes));
  };
  if (window_.is_zero()) {
    slice_ = make(slice);
  } else {
    windows_ = make(window_ * slots_.size());
    disk_slice_ = value_or_throw(arena::DiskStorage::make(arena, tag, slice));
  }
}

Bytes StreamedSlices::in_window(std::size_t slot, const Range& range) const {
  return window_ * slot + range.from % step::kWindowPage;
}

arena::DiskRange StreamedSlices::in_slice(std::size_t slot, const Range& range) const {
  return {&disk_slice_->file(), range.from, windows_->data() + in_window(slot, range).count(),
          range.size};
}

arena::Transfer StreamedSlices::transfer(std::size_t slot, const SlotPart& part,
                                         const Range& range) const {
  const bool disk = disk_slice_ != nullptr;
  return {part.region, part.offset + range.to, disk ? windows_.get() : slice_.get(),
          disk ? in_window(slot, range) : range.from, range.size};
}

Status StreamedSlices::fetch(std::size_t slot, const SlotPart& part, const Range& range) {
  if (range.size.is_zero()) return {};
  if (disk_slice_ != nullptr) {
    NEAP_TRY(begin_writes());
    NEAP_TRY(wait_counted(leaving_[slot].writing, disk_use_));
    NEAP_TRY(lane_.wait_for_fetch(slot));
    const arena::DiskRange from = in_slice(slot, range);
    arena::DiskLane::Batch reading = disk_.read({&from, 1});
    disk_use_.disk_read += range.size;
    NEAP_TRY(wait_counted(reading, disk_use_));
  }
  const arena::Transfer copy = transfer(slot, part, range);
  return lane_.fetch(slot, kind_, {&copy, 1}, SlotLane::After::kStoreOfSlot);
}

Status StreamedSlices::store(std::size_t slot, const Range& range) {
  if (disk_slice_ != nullptr) {
    NEAP_TRY(begin_writes());
    NEAP_TRY(wait_counted(leaving_[slot].writing, disk_use_));
    leaving_[slot].range = range;
  }
  const arena::Transfer copy = transfer(slot, slots_[slot], range);
  return lane_.store(slot, kind_, {&copy, 1});
}

Status StreamedSlices::begin_writes() {
  for (std::size_t slot = 0; slot < leaving_.size(); ++slot) {
    const std::optional<Range> range = std::exchange(leaving_[slot].range, std::nullopt);
    if (!range) continue;
    NEAP_TRY(lane_.wait_for_store(slot));
    const arena::DiskRange to = in_slice(slot, *range);
    leaving_[slot].writing = disk_.write({&to, 1});
    disk_use_.disk_written += range->size;
  }
  return {};
}

Status StreamedSlices::close() {
  Status first = begin_writes();
  for (Leaving& leaving : leaving_) {
    leaving.range.reset();
    Status written = wait_counted(leaving.writing, disk_use_);
    if (first.ok()) first = std::move(written);
  }
  Status drained = lane_.drain();
  return first.ok() ? drained : first;
}

Result<LinkUses> StreamedSlices::take_use() {
  NEAP_TRY_ASSIGN(LinkUses uses, lane_.take_use());
  uses[index_of(kind_)].add_disk(std::exchange(disk_use_, {}));
  return uses;
}

}  // namespace neap::bridge
