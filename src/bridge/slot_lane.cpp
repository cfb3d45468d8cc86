#include "bridge/slot_lane.h"

#include <chrono>

namespace neap::bridge {
namespace {

// The lane remembers a batch until it was waited for. One so many batches back has long been done.
constexpr std::size_t kMostRemembered = 16;

Bytes bytes_of(std::span<const arena::Transfer> copies) {
  Bytes sum;
  for (const arena::Transfer& copy : copies) sum += copy.size;
  return sum;
}

}  // namespace

LinkUse& LinkUse::operator+=(const LinkUse& o) {
  to_device += o.to_device;
  to_host += o.to_host;
  wait_seconds += o.wait_seconds;
  return *this;
}

SlotLane::SlotLane(arena::Arena& arena, device::StreamId computes, std::size_t slots)
    : computes_(computes),
      lane_(value_or_throw(arena::TransferLane::make(arena))),
      filled_(slots),
      stored_(slots) {}

Status SlotLane::fetch(std::size_t slot, std::span<const arena::Transfer> copies, After after) {
  if (after != After::kNothing) {
    const std::optional<Mark>& store = after == After::kEveryStore ? last_stored_ : stored_[slot];
    if (store) NEAP_TRY(lane_->hold_other_direction(*store));
  }
  NEAP_TRY_ASSIGN(filled_[slot], lane_->to_device(copies));
  use_.to_device += bytes_of(copies);
  return remember(*filled_[slot]);
}

Status SlotLane::wait_for_slot(std::size_t slot) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::optional<Mark>& mark : {filled_[slot], stored_[slot]})
    if (mark) NEAP_TRY(lane_->hold_stream(computes_, *mark));
  use_.wait_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

Status SlotLane::begin_after_work() {
  return lane_->begin_after(computes_);
}

Status SlotLane::fetch_after_stores() {
  return last_stored_ ? lane_->hold_other_direction(*last_stored_) : Status();
}

Status SlotLane::store(std::size_t slot, std::span<const arena::Transfer> copies) {
  NEAP_TRY_ASSIGN(last_stored_, lane_->to_storage(copies));
  stored_[slot] = last_stored_;
  use_.to_host += bytes_of(copies);
  return remember(*stored_[slot]);
}

Status SlotLane::remember(Mark mark) {
  not_waited_for_.push_back(mark);
  if (not_waited_for_.size() <= kMostRemembered) return {};
  NEAP_TRY(lane_->wait(not_waited_for_.front()));
  not_waited_for_.pop_front();
  return {};
}

Status SlotLane::drain() {
  not_waited_for_.clear();
  last_stored_.reset();
  for (auto* marks : {&filled_, &stored_}) marks->assign(marks->size(), std::nullopt);
  return lane_->drain();
}

}  // namespace neap::bridge
