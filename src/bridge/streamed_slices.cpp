#include "bridge/streamed_slices.h"

#include <utility>

#include "step/units/block_buffers.h"
#include "step/units/update_parts.h"

namespace neap::bridge {

StreamedSlices::StreamedSlices(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots, Bytes slice,
                               step::StreamedKind kind, Bytes window)
    : slots_(std::move(slots)),
      kind_(kind),
      lane_(arena, computes, slots_.size()),
      leaving_(slots_.size()),
      coming_(slots_.size()),
      turns_(kind == step::StreamedKind::kWeights ? step::kBlockSlots : 0) {
  if (window.is_zero()) {
    slice_ = value_or_throw(arena::HostStorage::make(arena, tag, slice));
  } else {
    windows_.emplace(arena, lane_, disk_, tag, slots_.size(), window);
    disk_slice_ = value_or_throw(arena::DiskStorage::make(arena, tag, slice));
  }
}

StagingWindows::Range StreamedSlices::in_slice(const Range& range) const {
  return {&disk_slice_->file(), range.from, range.from % step::kWindowPage, range.size};
}

arena::Transfer StreamedSlices::from_host(const SlotPart& part, const Range& range) const {
  return {part.region, part.offset + range.to, slice_.get(), range.from, range.size};
}

StagingWindows::Piece StreamedSlices::from_window(const SlotPart& part, const Range& range) const {
  return {part.region, part.offset + range.to, in_slice(range).in_window, range.size};
}

Status StreamedSlices::read(std::size_t window, const Range& range) {
  const StagingWindows::Range from = in_slice(range);
  return windows_->read(window, {&from, 1});
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
  return ahead ? windows_->drop_read(ahead->window) : Status();
}

Status StreamedSlices::begin_to(std::size_t slot, const SlotPart& part, const Range& range) {
  if (range.size.is_zero()) return {};
  if (disk_slice_ == nullptr) {
    const arena::Transfer copy = from_host(part, range);
    return lane_.fetch(slot, kind_, {&copy, 1}, SlotLane::After::kStoreOfSlot).status();
  }
  NEAP_TRY(begin_writes());
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
  NEAP_TRY(windows_->wait_for_read(coming->window));
  const StagingWindows::Piece piece = from_window(part, coming->range);
  return windows_->fetch(coming->window, slot, kind_, {&piece, 1}, SlotLane::After::kStoreOfSlot);
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
  if (disk_slice_ == nullptr) {
    const arena::Transfer copy = from_host(slots_[slot], range);
    return lane_.store(slot, kind_, {&copy, 1}).status();
  }
  NEAP_TRY(begin_writes());
  const StagingWindows::Piece piece = from_window(slots_[slot], range);
  NEAP_TRY(windows_->store(slot, slot, kind_, {&piece, 1}));
  leaving_[slot] = range;
  return {};
}

Status StreamedSlices::begin_writes() {
  for (std::size_t window = 0; window < leaving_.size(); ++window) {
    const std::optional<Range> range = std::exchange(leaving_[window], std::nullopt);
    if (!range) continue;
    const StagingWindows::Range to = in_slice(*range);
    NEAP_TRY(windows_->write(window, {&to, 1}));
  }
  return {};
}

Status StreamedSlices::close() {
  Status first = begin_writes();
  ahead_.reset();
  for (std::optional<Coming>& coming : coming_) coming.reset();
  for (std::optional<Range>& range : leaving_) range.reset();
  Status written = windows_ ? windows_->close() : Status();
  if (first.ok()) first = std::move(written);
  Status drained = lane_.drain();
  return first.ok() ? drained : first;
}

Result<LinkUses> StreamedSlices::take_use() {
  NEAP_TRY_ASSIGN(LinkUses uses, lane_.take_use());
  if (windows_) uses[index_of(kind_)].add_disk(windows_->take_use());
  return uses;
}

}  // namespace neap::bridge
