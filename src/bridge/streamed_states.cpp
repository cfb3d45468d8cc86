#include "bridge/streamed_states.h"

#include <utility>

#include "base/log.h"
#include "step/units/update_parts.h"

namespace neap::bridge {

StreamedStates::StreamedStates(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots,
                               const std::vector<Bytes>& units, Bytes window)
    : slots_(std::move(slots)), lane_(arena, computes, slots_.size()) {
  const bool disk = !window.is_zero();
  for (const Bytes bytes : units) {
    if (disk) {
      disks_.push_back(value_or_throw(arena::DiskStorage::make(arena, tag, bytes)));
    } else {
      hosts_.push_back(value_or_throw(arena::HostStorage::make(arena, tag, bytes)));
    }
  }
  if (disk) windows_.emplace(arena, lane_, disk_, tag, step::kUpdateWindows, window);
  copies_.resize(disk ? step::kUpdateWindows : slots_.size());
}

Resting StreamedStates::states(std::size_t unit) const {
  if (windows_) return {nullptr, disks_[unit].get()};
  return {hosts_[unit].get(), nullptr};
}

std::vector<arena::Transfer> StreamedStates::transfers(std::size_t part, step::StreamedKind kind,
                                                       bool Copy::*which) {
  std::vector<arena::Transfer> out;
  const SlotPart& slot = slots_[slot_of(part)];
  for (const Copy& copy : copies_[window_of(part)])
    if (copy.kind == kind && copy.*which && copy.from.host != nullptr)
      out.push_back({slot.region, slot.offset + copy.slot_offset, copy.from.host,
                     copy.storage_offset, copy.size});
  return out;
}

std::vector<StagingWindows::Piece> StreamedStates::pieces(std::size_t part, step::StreamedKind kind,
                                                          bool Copy::*which) {
  std::vector<StagingWindows::Piece> out;
  const SlotPart& slot = slots_[slot_of(part)];
  for (const Copy& copy : copies_[window_of(part)])
    if (copy.kind == kind && copy.*which && copy.from.disk != nullptr)
      out.push_back({slot.region, slot.offset + copy.slot_offset, copy.window_offset, copy.size});
  return out;
}

std::vector<StagingWindows::Range> StreamedStates::ranges(std::size_t part, bool Copy::*which) {
  std::vector<StagingWindows::Range> out;
  for (const Copy& copy : copies_[window_of(part)])
    if (copy.from.disk != nullptr && copy.*which)
      out.push_back({&copy.from.disk->file(), copy.storage_offset, copy.window_offset, copy.size});
  return out;
}

Status StreamedStates::fetch(std::size_t part) {
  constexpr SlotLane::After kAfter = SlotLane::After::kStoreOfSlot;
  const std::size_t slot = slot_of(part), window = window_of(part);
  if (windows_) NEAP_TRY(windows_->wait_for_read(window));
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto from_host = transfers(part, kind, &Copy::fetched);
    if (!from_host.empty()) NEAP_TRY(lane_.fetch(slot, kind, from_host, kAfter).status());
    const auto from_disk = pieces(part, kind, &Copy::fetched);
    if (!from_disk.empty()) NEAP_TRY(windows_->fetch(window, slot, kind, from_disk, kAfter));
  }
  return {};
}

Status StreamedStates::store(std::size_t part) {
  const std::size_t slot = slot_of(part);
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto to_host = transfers(part, kind, &Copy::stored);
    if (!to_host.empty()) NEAP_TRY(lane_.store(slot, kind, to_host).status());
    const auto to_disk = pieces(part, kind, &Copy::stored);
    if (!to_disk.empty()) NEAP_TRY(windows_->store(window_of(part), slot, kind, to_disk));
  }
  return {};
}

Status StreamedStates::begin_read(std::size_t part) {
  return windows_ ? windows_->read(window_of(part), ranges(part, &Copy::fetched)) : Status();
}

// Starts when the part has left the device.
Status StreamedStates::begin_write(std::size_t part) {
  const auto out = ranges(part, &Copy::stored);
  return out.empty() ? Status() : windows_->write(window_of(part), out);
}

// After a failure: waits until nothing is running.
Status StreamedStates::stop() {
  Status drained = lane_.drain();
  Status written = windows_ ? windows_->close() : Status();
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
  const std::size_t read = coming + (windows_ ? step::kPartsAhead : 0);
  std::size_t next = 0, next_read = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    for (; next_read < parts && next_read < part + read; ++next_read) {
      copies_[window_of(next_read)] = copies(next_read);
      throw_if_error(begin_read(next_read));
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
  if (windows_) throw_if_error(windows_->close());
}

Result<LinkUses> StreamedStates::take_use() {
  NEAP_TRY_ASSIGN(LinkUses uses, lane_.take_use());
  if (windows_) uses[index_of(step::StreamedKind::kStates)].add_disk(windows_->take_use());
  return uses;
}

}  // namespace neap::bridge
