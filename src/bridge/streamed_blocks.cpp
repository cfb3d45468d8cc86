#include "bridge/streamed_blocks.h"

#include <algorithm>
#include <utility>

namespace neap::bridge {
namespace {

step::WithBlocks with_blocks(const StreamedBlocks::Slot& slot) {
  return {slot.gradients.has_value(), slot.inputs.has_value()};
}

using Kind = step::StreamedKind;

arena::Transfer all_of(const SlotPart& slot, const arena::HostStorage& storage) {
  return {slot.region, slot.offset, &storage, Bytes(), storage.size()};
}

}  // namespace

StreamedBlocks::StreamedBlocks(arena::Arena& arena, device::StreamId computes,
                               const std::string& tag, std::vector<Slot> slots,
                               const std::vector<UnitBytes>& blocks, const Tables& tables)
    : WindowedBlocks(blocks.size(), slots.size(), with_blocks(slots.at(0)), tables.turns),
      slots_(std::move(slots)),
      table_slot_(tables.slot),
      lane_(arena, computes, slots_.size() + 1) {
  const auto make = [&](Bytes bytes) {
    return bytes.is_zero() ? nullptr : value_or_throw(arena::HostStorage::make(arena, tag, bytes));
  };
  const auto add = [&](std::vector<Storage>& to, const std::vector<UnitBytes>& units) {
    for (const UnitBytes& unit : units)
      to.push_back({unit.name, make(unit.weights), make(unit.gradients), make(unit.inputs), Bytes(),
                    unit.gradients});
  };
  add(storage_, blocks);
  add(tables_, tables.units);
}

const StreamedBlocks::Storage* StreamedBlocks::table(const std::string& name) const {
  const auto found = std::find_if(tables_.begin(), tables_.end(),
                                  [&](const Storage& table) { return table.name == name; });
  return found == tables_.end() ? nullptr : &*found;
}

void StreamedBlocks::keep_own(const std::string& name, Bytes first, Bytes size) {
  for (std::vector<Storage>* units : {&storage_, &tables_}) {
    for (Storage& unit : *units) {
      if (unit.name != name) continue;
      unit.own_first = first;
      unit.own_size = size;
    }
  }
}

void StreamedBlocks::open() {
  forget();
  (void)take_failure();
}

Status StreamedBlocks::gather(const std::vector<SlotPart>& parts) {
  std::vector<arena::Transfer> copies;
  for (std::size_t block = 0; block < parts.size(); ++block)
    copies.push_back(all_of(parts[block], *storage_[block].weights));
  NEAP_TRY(lane_.fetch(0, Kind::kWeights, copies, SlotLane::After::kNothing));
  return lane_.wait_for_slot(0);
}

Status StreamedBlocks::close() {
  Status drained = lane_.drain();
  Status failed = take_failure();
  forget();
  return failed.ok() ? drained : failed;
}

Status StreamedBlocks::begin_turn(step::Table, const step::TableTurns::Turn& turn) {
  const Storage& unit = tables_[turn.unit];
  const auto fetch = [&](Kind kind, const arena::Transfer& copy) {
    return lane_.fetch(slots_.size(), kind, {&copy, 1}, SlotLane::After::kEveryStore);
  };
  if (turn.weights) NEAP_TRY(fetch(Kind::kWeights, all_of(table_slot_->weights, *unit.weights)));
  if (turn.gradients)
    NEAP_TRY(fetch(Kind::kGradients, all_of(*table_slot_->gradients, *unit.gradients)));
  for (std::size_t slot = 0; slot <= slots_.size(); ++slot) NEAP_TRY(lane_.wait_for_slot(slot));
  return {};
}

Status StreamedBlocks::end_turn(const step::TableTurns::Turn& turn) {
  if (!turn.adds) return {};
  NEAP_TRY(leave(slots_.size(), *table_slot_->gradients, tables_[turn.unit], turn.last));
  return lane_.fetch_after_stores();
}

Status StreamedBlocks::leave(std::size_t in, const SlotPart& gradients, const Storage& unit,
                             bool complete) {
  arena::Transfer copy = all_of(gradients, *unit.gradients);
  if (complete) {
    copy.offset += unit.own_first;
    copy.storage_offset = unit.own_first;
    copy.size = unit.own_size;
  }
  return copy.size.is_zero() ? Status() : lane_.store(in, Kind::kGradients, {&copy, 1});
}

arena::Transfer StreamedBlocks::inputs_of(std::size_t block, std::size_t slot) const {
  const SlotPart& part = *slots_[slot].inputs;
  return {part.region, part.offset, storage_[block].inputs.get(), Bytes(), input_bytes_};
}

Status StreamedBlocks::leave(std::size_t block, step::BlockWindow::Leaving what) {
  if (what.gradients)
    return leave(what.slot, *slots_[what.slot].gradients, storage_[block], what.complete);
  const arena::Transfer copy = inputs_of(block, what.slot);
  return lane_.store(what.slot, Kind::kInputs, {&copy, 1});
}

Status StreamedBlocks::bring(step::BlockWindow::Place place) {
  const Slot& slot = slots_[place.slot];
  const Storage& unit = storage_[place.block];
  const auto fetch = [&](Kind kind, const arena::Transfer& copy, SlotLane::After after) {
    return lane_.fetch(place.slot, kind, {&copy, 1}, after);
  };
  if (place.weights)
    NEAP_TRY(fetch(Kind::kWeights, all_of(slot.weights, *unit.weights), SlotLane::After::kNothing));
  // Inputs were stored from a slot that was used again, or given to a table, since: the work that this fetch
  // begins after has waited for that store.
  if (place.inputs)
    NEAP_TRY(fetch(Kind::kInputs, inputs_of(place.block, place.slot), SlotLane::After::kNothing));
  if (!place.gradients) return {};
  return fetch(Kind::kGradients, all_of(*slot.gradients, *unit.gradients),
               SlotLane::After::kEveryStore);
}

}  // namespace neap::bridge
