#include "bridge/streamed_states.h"

#include <utility>

#include "base/log.h"

namespace neap::bridge {

StreamedStates::StreamedStates(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<SlotPart> slots,
                               const std::vector<Bytes>& units)
    : slots_(std::move(slots)), lane_(arena, computes, slots_.size()) {
  for (const Bytes bytes : units)
    storage_.push_back(value_or_throw(arena::HostStorage::make(arena, tag, bytes)));
}

std::vector<arena::Transfer> StreamedStates::transfers(const std::vector<Copy>& copies,
                                                       step::StreamedKind kind, std::size_t slot,
                                                       bool Copy::*which) const {
  std::vector<arena::Transfer> out;
  for (const Copy& copy : copies) {
    if (copy.kind == kind && copy.*which)
      out.push_back({slots_[slot].region, slots_[slot].offset + copy.slot_offset, copy.storage,
                     copy.storage_offset, copy.size});
  }
  return out;
}

Status StreamedStates::fetch(const std::vector<Copy>& copies, std::size_t slot) {
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto in = transfers(copies, kind, slot, &Copy::fetched);
    if (!in.empty()) NEAP_TRY(lane_.fetch(slot, kind, in, SlotLane::After::kStoreOfSlot));
  }
  return {};
}

Status StreamedStates::store(const std::vector<Copy>& copies, std::size_t slot) {
  for (const step::StreamedKind kind : step::kStreamedKinds) {
    const auto out = transfers(copies, kind, slot, &Copy::stored);
    if (!out.empty()) NEAP_TRY(lane_.store(slot, kind, out));
  }
  return {};
}

void StreamedStates::for_each(std::size_t parts, const CopiesOf& copies, const Visit& visit) {
  const std::size_t slots = slots_.size();
  std::vector<std::vector<Copy>> in_slot(slots);
  std::size_t next = 0;  // that comes
  try {
    for (std::size_t part = 0; part < parts; ++part) {
      // Ahead by all slots but the one whose part still leaves.
      for (; next < parts && next + 1 < part + slots; ++next) {
        const std::size_t slot = next % slots;
        in_slot[slot] = copies(next);
        throw_if_error(fetch(in_slot[slot], slot));
      }
      const std::size_t slot = part % slots;
      throw_if_error(lane_.wait_for_slot(slot));
      visit(part, slot);
      throw_if_error(lane_.begin_after_work());
      throw_if_error(store(in_slot[slot], slot));
    }
  } catch (...) {
    if (const Status drained = lane_.drain(); !drained.ok()) log::warn(drained.message());
    throw;
  }
  throw_if_error(lane_.drain());
}

}  // namespace neap::bridge
