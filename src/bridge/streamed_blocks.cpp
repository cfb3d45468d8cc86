#include "bridge/streamed_blocks.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

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
                               const std::vector<UnitBytes>& blocks, const Tables& tables,
                               const OnDisk& disk, std::int64_t input_passes)
    : WindowedBlocks(blocks.size(), slots.size(), with_blocks(slots.at(0)), tables.turns),
      slots_(std::move(slots)),
      table_slot_(tables.slot),
      lane_(arena, computes, slots_.size() + 1),
      on_disk_(disk),
      input_passes_(static_cast<std::size_t>(input_passes)) {
  const auto make = [&](Bytes bytes) {
    return bytes.is_zero() ? nullptr : value_or_throw(arena::HostStorage::make(arena, tag, bytes));
  };
  const auto make_on_disk = [&](Bytes bytes) {
    return bytes.is_zero() ? nullptr : value_or_throw(arena::DiskStorage::make(arena, tag, bytes));
  };
  const auto add = [&](std::vector<Storage>& to, const std::vector<UnitBytes>& units,
                       bool on_disk) {
    for (const UnitBytes& unit : units) {
      Storage& made = to.emplace_back();
      made.name = unit.name;
      made.all_gradients = made.own_size = unit.gradients;
      made.inputs = make(unit.inputs);
      made.input_sizes.resize(input_passes_);
      if (on_disk) {
        if (!disk.in_files) {
          made.disk_weights = make_on_disk(unit.weights);
          made.files.parts = {{&made.disk_weights->file(), Bytes(), unit.weights}};
        }
        made.disk_gradients = make_on_disk(unit.gradients);
      } else {
        if (!disk.in_files) made.weights = make(unit.weights);
        made.gradients = make(unit.gradients);
      }
    }
  };
  add(storage_, blocks, !disk.weights.is_zero());
  add(tables_, tables.units, false);
  if (!disk.weights.is_zero())
    disk_.emplace(arena, lane_, tag, slots_.size(), disk.weights, disk.gradients);
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

Status StreamedBlocks::read_from(std::vector<FileUnit> blocks, std::vector<FileUnit> tables,
                                 std::vector<std::shared_ptr<const arena::DiskFile>> files) {
  for (FileUnit& block : blocks) {
    const Bytes taken = block.place();
    if (taken > on_disk_.weights)
      return {ErrorCode::kInternal,
              format("a block in files needs a window of {}, not {}", taken, on_disk_.weights)};
  }
  for (std::size_t i = 0; i < storage_.size(); ++i) storage_[i].files = std::move(blocks.at(i));
  for (std::size_t i = 0; i < tables_.size(); ++i) tables_[i].files = std::move(tables.at(i));
  files_ = std::move(files);
  return {};
}

void StreamedBlocks::read_rows(std::span<const std::int64_t> rows, Bytes width, std::byte* to) {
  throw_if_error(disk_->read_rows(tables_.front().files.parts.front(), width, rows, to));
}

Status StreamedBlocks::open() {
  forget();
  (void)take_failure();
  if (!disk_) return {};
  for (const auto& file : files_) NEAP_TRY(file->unchanged());
  for (const Storage& block : storage_) {
    if (block.disk_weights != nullptr) NEAP_TRY(block.disk_weights->settle());
    if (block.disk_gradients != nullptr) NEAP_TRY(block.disk_gradients->settle());
  }
  return {};
}

DiskWindows::Slot StreamedBlocks::place_of(std::size_t slot) const {
  const Slot& at = slots_[slot];
  return {at.weights->region, at.weights->offset, at.gradients ? at.gradients->offset : Bytes()};
}

Status StreamedBlocks::wait_for_slot(std::size_t slot) {
  if (disk_) NEAP_TRY(disk_->arrive(slot, place_of(slot)));
  return lane_.wait_for_slot(slot);
}

Status StreamedBlocks::bring_to_generate(std::size_t block, const SlotPart& part) {
  NEAP_TRY(lane_.begin_after_work());
  if (!disk_) {
    const arena::Transfer copy = all_of(part, *storage_[block].weights);
    NEAP_TRY(lane_.fetch(0, Kind::kWeights, {&copy, 1}, SlotLane::After::kNothing).status());
    return lane_.wait_for_slot(0);
  }
  // Uses the staging buffers of all slots.
  const std::size_t windows = slots_.size(), last = block + windows - 1;
  for (std::size_t next = block == 0 ? 0 : last; next <= last && next < storage_.size(); ++next)
    NEAP_TRY(disk_->begin(next % windows, {&storage_[next].files}));
  NEAP_TRY(disk_->arrive(block % windows, {part.region, part.offset, Bytes()}));
  return lane_.wait_for_slot(block % windows);
}

Result<LinkUses> StreamedBlocks::take_use() {
  NEAP_TRY_ASSIGN(LinkUses uses, lane_.take_use());
  if (disk_) disk_->add_use(uses);
  return uses;
}

Status StreamedBlocks::close() {
  Status written = disk_ ? disk_->close() : Status();
  Status drained = lane_.drain();
  if (drained.ok()) drained = std::move(written);
  Status failed = take_failure();
  forget();
  return failed.ok() ? drained : failed;
}

Status StreamedBlocks::begin_turn(step::Table, const step::TableTurns::Turn& turn) {
  const Storage& unit = tables_[turn.unit];
  const auto fetch = [&](Kind kind, const arena::Transfer& copy) {
    return lane_.fetch(slots_.size(), kind, {&copy, 1}, SlotLane::After::kEveryStore).status();
  };
  if (turn.weights && in_files()) {
    const SlotPart& to = *table_slot_->weights;
    NEAP_TRY(disk_->pass(slots_.size(), unit.files, {to.region, to.offset, Bytes()}));
  } else if (turn.weights) {
    NEAP_TRY(fetch(Kind::kWeights, all_of(*table_slot_->weights, *unit.weights)));
  }
  if (turn.gradients)
    NEAP_TRY(fetch(Kind::kGradients, all_of(*table_slot_->gradients, *unit.gradients)));
  for (std::size_t slot = 0; slot <= slots_.size(); ++slot) NEAP_TRY(lane_.wait_for_slot(slot));
  for (std::size_t slot = 0; disk_ && slot < slots_.size(); ++slot) NEAP_TRY(disk_->drop(slot));
  return {};
}

Status StreamedBlocks::end_turn(const step::TableTurns::Turn& turn) {
  if (!turn.adds) return {};
  NEAP_TRY(leave(slots_.size(), *table_slot_->gradients, tables_[turn.unit], turn.last));
  return lane_.fetch_after_stores();
}

Status StreamedBlocks::leave(std::size_t in, const SlotPart& gradients, const Storage& unit,
                             bool complete) {
  const DiskWindows::Range range = unit.leaving(complete);
  const arena::Transfer copy{gradients.region, gradients.offset + range.first, unit.gradients.get(),
                             range.first, range.size};
  return copy.size.is_zero() ? Status() : lane_.store(in, Kind::kGradients, {&copy, 1}).status();
}

arena::Transfer StreamedBlocks::inputs_of(const Storage& block, std::size_t slot,
                                          std::size_t pass) const {
  const SlotPart& part = *slots_[slot].inputs;
  return {part.region, part.offset, block.inputs.get(), block.inputs->size() / input_passes_ * pass,
          block.input_sizes[pass]};
}

Status StreamedBlocks::leave(std::size_t block, step::BlockWindow::Leaving what) {
  if (what.gradients && disk_) {
    const Storage& unit = storage_[block];
    const DiskWindows::Range range = unit.leaving(what.complete);
    return range.size.is_zero()
               ? Status()
               : disk_->leave(what.slot, place_of(what.slot), *unit.disk_gradients, range);
  }
  if (what.gradients)
    return leave(what.slot, *slots_[what.slot].gradients, storage_[block], what.complete);
  const std::size_t pass = static_cast<std::size_t>(what.pass) % input_passes_;
  storage_[block].input_sizes[pass] = input_bytes_;
  const arena::Transfer copy = inputs_of(storage_[block], what.slot, pass);
  return copy.size.is_zero() ? Status()
                             : lane_.store(what.slot, Kind::kInputs, {&copy, 1}).status();
}

Status StreamedBlocks::bring(step::BlockWindow::Place place) {
  const Slot& slot = slots_[place.slot];
  const Storage& unit = storage_[place.block];
  const auto fetch = [&](Kind kind, const arena::Transfer& copy, SlotLane::After after) {
    return lane_.fetch(place.slot, kind, {&copy, 1}, after).status();
  };
  if (disk_ && (place.weights || place.gradients)) {
    NEAP_TRY(disk_->begin(place.slot, {place.weights ? &unit.files : nullptr,
                                       place.gradients ? unit.disk_gradients.get() : nullptr}));
  }
  if (place.weights && unit.weights != nullptr)
    NEAP_TRY(
        fetch(Kind::kWeights, all_of(*slot.weights, *unit.weights), SlotLane::After::kNothing));
  // Since these inputs were stored, their slot has been used again or given to a table, and the work
  // that this fetch follows has waited for that store. But a later pass may have kept inputs in
  // this slot, which are being stored.
  if (place.inputs) {
    const arena::Transfer copy =
        inputs_of(unit, place.slot, static_cast<std::size_t>(place.pass) % input_passes_);
    const auto after =
        input_passes_ > 1 ? SlotLane::After::kStoreOfSlot : SlotLane::After::kNothing;
    if (!copy.size.is_zero()) NEAP_TRY(fetch(Kind::kInputs, copy, after));
  }
  if (!place.gradients || disk_) return {};
  return fetch(Kind::kGradients, all_of(*slot.gradients, *unit.gradients),
               SlotLane::After::kEveryStore);
}

}  // namespace neap::bridge
