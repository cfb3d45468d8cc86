#include "bridge/streamed_states.h"

#include <utility>

#include "base/log.h"
#include "step/update_parts.h"

namespace neap::bridge {

StreamedStates::StreamedStates(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots,
                               const std::vector<Bytes>& units, Bytes window)
    : slots_(std::move(slots)), lane_(arena, computes, slots_.size()), moving_(slots_.size()) {
  const bool disk = !window.is_zero();
  for (const Bytes bytes : units) {
    if (disk) {
      disks_.push_back(value_or_throw(arena::DiskStorage::make(arena, tag, bytes)));
    } else {
      hosts_.push_back(value_or_throw(arena::HostStorage::make(arena, tag, bytes)));
    }
  }
  if (!disk) return;
  moving_ = std::vector<Moving>(step::kUpdateWindows);
  window_bytes_ = window;
  windows_ = value_or_throw(arena::HostStorage::make(arena, tag, window * moving_.size()));
}

Resting StreamedStates::states(std::size_t unit) const {
  if (on_disk()) return {nullptr, disks_[unit].get()};
  return {hosts_[unit].get(), nullptr};
}

std::vector<arena::Transfer> StreamedStates::transfers(std::size_t part, step::StreamedKind kind,
                                                       bool Copy::*which) {
  std::vector<arena::Transfer> out;
  const SlotPart& slot = slots_[slot_of(part)];
  for (const Copy& copy : moving(part).copies) {
    if (copy.kind != kind || !(copy.*which)) continue;
    const bool disk = copy.from.disk != nullptr;
    out.push_back({slot.region, slot.offset + copy.slot_offset,
                   disk ? windows_.get() : copy.from.host,
                   disk ? window_of(part) + copy.window_offset : copy.storage_offset, copy.size});
  }
  return out;
}

std::vector<arena::DiskRange> StreamedStates::ranges(std::size_t part, bool Copy::*which) {
  std::vector<arena::DiskRange> out;
  for (const Copy& copy : moving(part).copies) {
    if (copy.from.disk == nullptr || !(copy.*which)) continue;
    out.push_back({&copy.from.disk->file(), copy.storage_offset,
                   windows_->data() + (window_of(part) + copy.window_offset).count(), copy.size});
  }
  return out;
}

Status StreamedStates::fetch(std::size_t part) {
  NEAP_TRY(wait_counted(moving(part).reading, disk_use_));
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto in = transfers(part, kind, &Copy::fetched);
    if (!in.empty()) NEAP_TRY(lane_.fetch(slot_of(part), kind, in, SlotLane::After::kStoreOfSlot));
  }
  return {};
}

Status StreamedStates::store(std::size_t part) {
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto out = transfers(part, kind, &Copy::stored);
    if (!out.empty()) NEAP_TRY(lane_.store(slot_of(part), kind, out));
  }
  return {};
}

void StreamedStates::begin_read(std::size_t part) {
  const auto in = ranges(part, &Copy::fetched);
  for (const arena::DiskRange& range : in) disk_use_.disk_read += range.size;
  if (!in.empty()) moving(part).reading = disk_.read(in);
}

// Starts when the part has left the device. The window of a part that is not copied back is free
// once its loads have ended.
Status StreamedStates::begin_write(std::size_t part) {
  const auto out = ranges(part, &Copy::stored);
  if (out.empty()) return on_disk() ? lane_.wait_for_fetch(slot_of(part)) : Status();
  NEAP_TRY(lane_.wait_for_store(slot_of(part)));
  for (const arena::DiskRange& range : out) disk_use_.disk_written += range.size;
  moving(part).writing = disk_.write(out);
  return {};
}

Status StreamedStates::wait_for_writes() {
  Status first;
  for (Moving& part : moving_) {
    Status done = wait_counted(part.writing, disk_use_);
    if (first.ok()) first = std::move(done);
  }
  return first;
}

// After a failure: waits until nothing is running.
Status StreamedStates::stop() {
  Status drained = lane_.drain();
  for (Moving& part : moving_) (void)part.reading.wait();
  Status written = wait_for_writes();
  return drained.ok() ? written : drained;
}

void StreamedStates::for_each(std::size_t parts, const CopiesOf& copies, const Visit& visit) {
  try {
    for (const auto& disk : disks_) throw_if_error(disk->settle());
    move(parts, copies, visit);
  } catch (...) {
    if (const Status stopped = stop(); !stopped.ok()) log::warn(stopped.message());
    throw;
  }
}

void StreamedStates::move(std::size_t parts, const CopiesOf& copies, const Visit& visit) {
  // Parts are loaded ahead into all slots except the one whose part is still being stored.
  const std::size_t coming = slots_.size() - 1;
  const std::size_t read = coming + (on_disk() ? step::kPartsAhead : 0);
  std::size_t next = 0, next_read = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    for (; next_read < parts && next_read < part + read; ++next_read) {
      throw_if_error(wait_counted(moving(next_read).writing, disk_use_));
      moving(next_read).copies = copies(next_read);
      begin_read(next_read);
    }
    for (; next < parts && next < part + coming; ++next) throw_if_error(fetch(next));
    throw_if_error(lane_.wait_for_slot(slot_of(part)));
    visit(part, slot_of(part));
    throw_if_error(lane_.begin_after_work());
    throw_if_error(store(part));
    // The previous part has left the device, or is about to.
    if (part > 0) throw_if_error(begin_write(part - 1));
  }
  if (parts > 0) throw_if_error(begin_write(parts - 1));
  throw_if_error(lane_.drain());
  throw_if_error(wait_for_writes());
}

Result<LinkUses> StreamedStates::take_use() {
  NEAP_TRY_ASSIGN(LinkUses uses, lane_.take_use());
  uses[index_of(step::StreamedKind::kStates)].add_disk(std::exchange(disk_use_, {}));
  return uses;
}

}  // namespace neap::bridge
