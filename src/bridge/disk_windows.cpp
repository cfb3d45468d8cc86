#include "bridge/disk_windows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "step/units/update_parts.h"

namespace neap::bridge {

using Kind = step::StreamedKind;

Bytes FileUnit::place() {
  Bytes end;
  for (Part& part : parts) {
    part.in_window = end + part.offset % step::kWindowPage;
    end = round_up(part.in_window + part.size, step::kWindowPage);
  }
  return end;
}

DiskWindows::DiskWindows(arena::Arena& arena, SlotLane& lane, const std::string& tag,
                         std::size_t slots, Bytes weights, Bytes gradients)
    : moving_(slots), weights_(arena, lane, disk_, tag, slots, weights) {
  if (!gradients.is_zero()) gradients_.emplace(arena, lane, disk_, tag, slots, gradients);
}

Status DiskWindows::begin(std::size_t slot, const Coming& unit) {
  NEAP_TRY(drop(slot));
  if (unit.gradients != nullptr) {
    NEAP_TRY(begin_writes());
    for (std::size_t other = 0; other < moving_.size(); ++other)
      if (moving_[other].written == unit.gradients) NEAP_TRY(gradients_->wait_for_write(other));
  }
  if (unit.weights != nullptr) {
    std::vector<StagingWindows::Range> ranges;
    for (const FileUnit::Part& part : unit.weights->parts) ranges.push_back(part.range());
    NEAP_TRY(weights_.read(slot, ranges));
  }
  if (unit.gradients != nullptr) {
    const StagingWindows::Range all{&unit.gradients->file(), Bytes(), Bytes(),
                                    unit.gradients->size()};
    NEAP_TRY(gradients_->read(slot, {&all, 1}));
  }
  moving_[slot].coming = unit;
  return {};
}

Status DiskWindows::arrive(std::size_t slot, const Slot& to) {
  const Coming unit = std::exchange(moving_[slot].coming, {});
  if (unit.weights != nullptr) {
    NEAP_TRY(weights_.wait_for_read(slot));
    std::vector<StagingWindows::Piece> pieces;
    for (const FileUnit::Part& part : unit.weights->parts)
      pieces.push_back({to.region, to.weights + part.in_unit, part.in_window, part.size});
    NEAP_TRY(weights_.fetch(slot, slot, Kind::kWeights, pieces, SlotLane::After::kNothing));
  }
  if (unit.gradients == nullptr) return {};
  NEAP_TRY(gradients_->wait_for_read(slot));
  const StagingWindows::Piece all{to.region, to.gradients, Bytes(), unit.gradients->size()};
  return gradients_->fetch(slot, slot, Kind::kGradients, {&all, 1}, SlotLane::After::kEveryStore);
}

Status DiskWindows::pass(std::size_t lane_slot, const FileUnit& unit, const Slot& to) {
  std::vector<FileUnit::Part> pieces;
  const Bytes room = weights_.bytes() - step::kWindowPage;
  for (FileUnit::Part part : unit.parts) {
    for (Bytes left = part.size; !left.is_zero(); left -= part.size) {
      part.size = std::min(left, room);
      part.in_window = part.offset % step::kWindowPage;
      pieces.push_back(part);
      part.offset += part.size;
      part.in_unit += part.size;
    }
  }
  const auto window_of = [&](std::size_t piece) { return piece % weights_.count(); };
  for (std::size_t slot = 0; slot < moving_.size(); ++slot) NEAP_TRY(drop(slot));
  // Reads one piece while the previous one is copied.
  for (std::size_t i = 0; i <= pieces.size(); ++i) {
    if (i < pieces.size()) {
      const StagingWindows::Range range = pieces[i].range();
      NEAP_TRY(weights_.read(window_of(i), {&range, 1}));
    }
    if (i == 0) continue;
    const FileUnit::Part& piece = pieces[i - 1];
    NEAP_TRY(weights_.wait_for_read(window_of(i - 1)));
    const StagingWindows::Piece copy{to.region, to.weights + piece.in_unit, piece.in_window,
                                     piece.size};
    NEAP_TRY(weights_.fetch(window_of(i - 1), lane_slot, Kind::kWeights, {&copy, 1},
                            SlotLane::After::kEveryStore));
  }
  for (std::size_t window = 0; window < weights_.count(); ++window)
    NEAP_TRY(weights_.wait_for_fetch(window));
  return {};
}

Status DiskWindows::read_rows(const FileUnit::Part& matrix, Bytes width,
                              std::span<const std::int64_t> rows, std::byte* to) {
  constexpr std::size_t kAtOnce = 64;
  const Bytes place = round_up(width + step::kWindowPage, step::kWindowPage);
  const Bytes all = place * std::min(kAtOnce, rows.size());
  const auto free = [](std::byte* memory) { std::free(memory); };
  const std::unique_ptr<std::byte, decltype(free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(step::kWindowPage.count(), all.count())), free);
  if (memory == nullptr && !rows.empty())
    return {ErrorCode::kOutOfHostMemory, format("no {} to read rows of an embedding", all)};
  for (std::size_t first = 0; first < rows.size(); first += kAtOnce) {
    std::vector<arena::DiskRange> ranges;
    for (std::size_t i = first; i < std::min(rows.size(), first + kAtOnce); ++i) {
      const auto row = static_cast<std::uint64_t>(rows[i]);
      if (row >= matrix.size / width)
        return {ErrorCode::kInvalidArgument,
                format("there is no row {} of {}", rows[i], matrix.size / width)};
      const Bytes offset = matrix.offset + width * row;
      std::byte* const at =
          memory.get() + (place * (i - first) + offset % step::kWindowPage).count();
      ranges.push_back({matrix.file, offset, at, width});
      rows_use_.disk_read += width;
    }
    arena::DiskLane::Batch batch = disk_.read(ranges);
    NEAP_TRY(wait_counted(batch, rows_use_));
    for (const arena::DiskRange& range : ranges) {
      std::memcpy(to, range.memory, width.count());
      to += width.count();
    }
  }
  return {};
}

Status DiskWindows::drop(std::size_t slot) {
  moving_[slot].coming = {};
  NEAP_TRY(weights_.drop_read(slot));
  return gradients_ ? gradients_->drop_read(slot) : Status();
}

Status DiskWindows::leave(std::size_t slot, const Slot& from, const arena::DiskStorage& gradients,
                          const Range& range) {
  NEAP_TRY(begin_writes());
  const StagingWindows::Piece copy{from.region, from.gradients + range.first, range.first,
                                   range.size};
  NEAP_TRY(gradients_->store(slot, slot, Kind::kGradients, {&copy, 1}));
  moving_[slot].leaving = &gradients;
  moving_[slot].leaves = range;
  return {};
}

// Writes what was copied from the device earlier.
Status DiskWindows::begin_writes() {
  for (std::size_t slot = 0; slot < moving_.size(); ++slot) {
    Moving& moving = moving_[slot];
    const arena::DiskStorage* const to = std::exchange(moving.leaving, nullptr);
    if (to == nullptr) continue;
    const auto [first, size] = moving.leaves;
    const StagingWindows::Range range{&to->file(), first, first, size};
    NEAP_TRY(gradients_->write(slot, {&range, 1}));
    moving.written = to;
  }
  return {};
}

Status DiskWindows::close() {
  Status first = gradients_ ? begin_writes() : Status();
  for (Moving& moving : moving_) {
    moving.leaving = nullptr;
    moving.coming = {};
  }
  (void)weights_.close();  // nothing is written from there
  Status written = gradients_ ? gradients_->close() : Status();
  return first.ok() ? written : first;
}

void DiskWindows::add_use(LinkUses& uses) {
  uses[index_of(Kind::kWeights)].add_disk(weights_.take_use());
  uses[index_of(Kind::kWeights)].add_disk(std::exchange(rows_use_, {}));
  if (gradients_) uses[index_of(Kind::kGradients)].add_disk(gradients_->take_use());
}

}  // namespace neap::bridge
