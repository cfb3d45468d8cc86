#include "bridge/streamed_slices.h"

#include <utility>

#include "step/block_buffers.h"
#include "step/update_parts.h"

namespace neap::bridge {

StreamedSlices::StreamedSlices(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots, Bytes slice,
                               step::StreamedKind kind, Bytes window)
    : slots_(std::move(slots)),
      kind_(kind),
      window_(window),
      lane_(arena, computes, slots_.size()),
      each_window_(slots_.size()),
      coming_(slots_.size()),
      turns_(kind == step::StreamedKind::kWeights ? step::kBlockSlots : 0) {
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

Bytes StreamedSlices::in_window(std::size_t window, const Range& range) const {
  return window_ * window + range.from % step::kWindowPage;
}

arena::DiskRange StreamedSlices::in_slice(std::size_t window, const Range& range) const {
  return {&disk_slice_->file(), range.from, windows_->data() + in_window(window, range).count(),
          range.size};
}

arena::Transfer StreamedSlices::transfer(std::size_t window, const SlotPart& part,
                                         const Range& range) const {
  const bool disk = disk_slice_ != nullptr;
  return {part.region, part.offset + range.to, disk ? windows_.get() : slice_.get(),
          disk ? in_window(window, range) : range.from, range.size};
}

// The window's previous data is already on the device or in the file.
Status StreamedSlices::read(std::size_t window, const Range& range) {
  Window& to = each_window_[window];
  NEAP_TRY(wait_counted(to.writing, disk_use_));
  NEAP_TRY(lane_.wait_for_fetch(to.slot));
  const arena::DiskRange from = in_slice(window, range);
  to.reading = disk_.read({&from, 1});
  return {};
}

Status StreamedSlices::read_ahead(const Range& range) {
  if (disk_slice_ == nullptr || range.size.is_zero()) return {};
  NEAP_TRY(forget_ahead());
  turn_ = (turn_ + 1) % turns_;
  ahead_ = Coming{turn_, range};
  return read(turn_, range);
}

Status StreamedSlices::forget_ahead() {
  const std::optional<Coming> ahead = std::exchange(ahead_, std::nullopt);
  return ahead ? each_window_[ahead->window].reading.wait() : Status();
}

Status StreamedSlices::begin_to(std::size_t slot, const SlotPart& part, const Range& range) {
  if (range.size.is_zero()) return {};
  if (disk_slice_ == nullptr) {
    const arena::Transfer copy = transfer(slot, part, range);
    return lane_.fetch(slot, kind_, {&copy, 1}, SlotLane::After::kStoreOfSlot);
  }
  NEAP_TRY(begin_writes());
  disk_use_.disk_read += range.size;
  const bool turns = slot < turns_;
  if (turns && ahead_ && ahead_->range.same_bytes(range)) {
    coming_[slot] = Coming{std::exchange(ahead_, std::nullopt)->window, range};
    return {};
  }
  if (turns) {
    NEAP_TRY(forget_ahead());
    turn_ = (turn_ + 1) % turns_;
  }
  const std::size_t window = turns ? turn_ : slot;
  coming_[slot] = Coming{window, range};
  return read(window, range);
}

Status StreamedSlices::arrive_at(std::size_t slot, const SlotPart& part) {
  const std::optional<Coming> coming = std::exchange(coming_[slot], std::nullopt);
  if (!coming) return {};
  Window& window = each_window_[coming->window];
  NEAP_TRY(wait_counted(window.reading, disk_use_));
  window.slot = slot;
  const arena::Transfer copy = transfer(coming->window, part, coming->range);
  return lane_.fetch(slot, kind_, {&copy, 1}, SlotLane::After::kStoreOfSlot);
}

Status StreamedSlices::begin(std::size_t slot, const Range& range) {
  return begin_to(slot, slots_[slot], range);
}

Status StreamedSlices::arrive(std::size_t slot) {
  return arrive_at(slot, slots_[slot]);
}

Status StreamedSlices::fetch(std::size_t slot, const SlotPart& part, const Range& range) {
  NEAP_TRY(begin_to(slot, part, range));
  return arrive_at(slot, part);
}

Status StreamedSlices::store(std::size_t slot, const Range& range) {
  if (disk_slice_ != nullptr) {
    NEAP_TRY(begin_writes());
    NEAP_TRY(wait_counted(each_window_[slot].writing, disk_use_));
    each_window_[slot].leaving = range;
    each_window_[slot].slot = slot;
  }
  const arena::Transfer copy = transfer(slot, slots_[slot], range);
  return lane_.store(slot, kind_, {&copy, 1});
}

Status StreamedSlices::begin_writes() {
  for (std::size_t w = 0; w < each_window_.size(); ++w) {
    Window& window = each_window_[w];
    const std::optional<Range> range = std::exchange(window.leaving, std::nullopt);
    if (!range) continue;
    NEAP_TRY(lane_.wait_for_store(window.slot));
    const arena::DiskRange to = in_slice(w, *range);
    window.writing = disk_.write({&to, 1});
    disk_use_.disk_written += range->size;
  }
  return {};
}

Status StreamedSlices::close() {
  Status first = begin_writes();
  ahead_.reset();
  for (std::optional<Coming>& coming : coming_) coming.reset();
  for (Window& window : each_window_) {
    window.leaving.reset();
    (void)window.reading.wait();  // it is not needed any more
    Status written = wait_counted(window.writing, disk_use_);
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
