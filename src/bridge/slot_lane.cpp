#include "bridge/slot_lane.h"

#include <algorithm>
#include <utility>

namespace neap::bridge {
namespace {

// Maximum number of batches in flight that the lane remembers. An older batch has ended.
constexpr std::size_t kMostRemembered = 32;
// The index for waits that are not counted.
constexpr std::size_t kUncounted = step::kStreamedKinds.size();

Bytes bytes_of(std::span<const arena::Transfer> copies) {
  Bytes sum;
  for (const arena::Transfer& copy : copies) sum += copy.size;
  return sum;
}

}  // namespace

SlotLane::SlotLane(arena::Arena& arena, device::StreamId computes, std::size_t slots)
    : computes_(computes), lane_(value_or_throw(arena::TransferLane::make(arena))), slots_(slots) {}

Result<SlotLane::Mark> SlotLane::fetch(std::size_t slot, step::StreamedKind kind,
                                       std::span<const arena::Transfer> copies, After after) {
  if (after != After::kNothing) {
    const std::optional<Mark>& store =
        after == After::kEveryStore ? last_stored_ : slots_[slot].stored;
    if (store) NEAP_TRY(lane_->hold_other_direction(*store));
  }
  NEAP_TRY_ASSIGN(const Mark mark, lane_->to_device(copies));
  use_[index_of(kind)].to_device += bytes_of(copies);
  NEAP_TRY(queued(slot, kind, mark));
  return mark;
}

Status SlotLane::wait_for_slot(std::size_t slot) {
  for (const auto& [mark, kind] : std::exchange(slots_[slot].awaits, {}))
    NEAP_TRY(lane_->hold_stream(computes_, mark, index_of(kind)));
  return {};
}

Status SlotLane::hold(device::StreamId stream, std::size_t slot) {
  for (const auto& [mark, kind] : slots_[slot].awaits)
    NEAP_TRY(lane_->hold_stream(stream, mark, kUncounted));
  return {};
}

Status SlotLane::begin_after_work() {
  return lane_->begin_after(computes_);
}

Status SlotLane::fetch_after_stores() {
  return last_stored_ ? lane_->hold_other_direction(*last_stored_) : Status();
}

Result<SlotLane::Mark> SlotLane::store(std::size_t slot, step::StreamedKind kind,
                                       std::span<const arena::Transfer> copies) {
  NEAP_TRY_ASSIGN(const Mark mark, lane_->to_storage(copies));
  last_stored_ = mark;
  slots_[slot].stored = mark;
  use_[index_of(kind)].to_host += bytes_of(copies);
  NEAP_TRY(queued(slot, kind, mark));
  return mark;
}

Status SlotLane::queued(std::size_t slot, step::StreamedKind kind, Mark mark) {
  slots_[slot].awaits.emplace(mark, kind);
  not_waited_for_.push_back(mark);
  if (not_waited_for_.size() <= kMostRemembered) return {};
  NEAP_TRY(lane_->wait(not_waited_for_.front()));
  not_waited_for_.pop_front();
  return {};
}

Status SlotLane::drain() {
  not_waited_for_.clear();
  last_stored_.reset();
  slots_.assign(slots_.size(), {});
  return lane_->drain();
}

Result<LinkUses> SlotLane::take_use() {
  NEAP_TRY_ASSIGN(const std::vector<double> held, lane_->take_held_seconds());
  for (std::size_t kind = 0; kind < std::min(held.size(), use_.size()); ++kind)
    use_[kind].visible_seconds = held[kind];
  return std::exchange(use_, {});
}

}  // namespace neap::bridge
