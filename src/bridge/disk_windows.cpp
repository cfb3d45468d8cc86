#include "bridge/disk_windows.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "step/update_parts.h"

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

Status wait_counted(arena::DiskLane::Batch& batch, LinkUse& use) {
  const auto begin = std::chrono::steady_clock::now();
  Status done = batch.wait();
  use.disk_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return done;
}

DiskWindows::DiskWindows(arena::Arena& arena, SlotLane& lane, const std::string& tag,
                         std::size_t slots, Bytes weights, Bytes gradients)
    : lane_(lane), windows_(slots) {
  for (Window& window : windows_) {
    window.weights = value_or_throw(arena::HostStorage::make(arena, tag, weights));
    if (!gradients.is_zero())
      window.gradients = value_or_throw(arena::HostStorage::make(arena, tag, gradients));
  }
}

Status DiskWindows::begin(std::size_t slot, const Coming& unit) {
  NEAP_TRY(drop(slot));
  Window& window = windows_[slot];
  std::vector<arena::DiskRange> ranges;
  const auto add = [&](const FileUnit::Part& part, const arena::HostStorage& to, Kind kind) {
    ranges.push_back({part.file, part.offset, to.data() + part.in_window.count(), part.size});
    use(kind).disk_read += part.size;
  };
  // The previous unit's copy ended long ago, so this does not block.
  NEAP_TRY(lane_.wait_for_fetch(slot));
  if (unit.gradients != nullptr) {
    NEAP_TRY(begin_writes());
    for (Window& other : windows_)
      if (&other == &window || other.written == unit.gradients)
        NEAP_TRY(wait(other.writing, Kind::kGradients));
  }
  if (unit.weights != nullptr)
    for (const FileUnit::Part& part : unit.weights->parts)
      add(part, *window.weights, Kind::kWeights);
  if (unit.gradients != nullptr)
    add({&unit.gradients->file(), Bytes(), unit.gradients->size()}, *window.gradients,
        Kind::kGradients);
  window.coming = unit;
  window.reading = disk_.read(ranges);
  return {};
}

Status DiskWindows::arrive(std::size_t slot, const Slot& to) {
  Window& window = windows_[slot];
  const Coming unit = std::exchange(window.coming, {});
  NEAP_TRY(wait(window.reading, unit.weights != nullptr ? Kind::kWeights : Kind::kGradients));
  if (unit.weights != nullptr) {
    std::vector<arena::Transfer> copies;
    for (const FileUnit::Part& part : unit.weights->parts)
      copies.push_back(
          {to.region, to.weights + part.in_unit, window.weights.get(), part.in_window, part.size});
    NEAP_TRY(lane_.fetch(slot, Kind::kWeights, copies, SlotLane::After::kNothing));
  }
  if (unit.gradients == nullptr) return {};
  const arena::Transfer copy{to.region, to.gradients, window.gradients.get(), Bytes(),
                             unit.gradients->size()};
  return lane_.fetch(slot, Kind::kGradients, {&copy, 1}, SlotLane::After::kEveryStore);
}

Status DiskWindows::pass(std::size_t lane_slot, const FileUnit& unit, const Slot& to) {
  std::vector<FileUnit::Part> pieces;
  const Bytes room = windows_.front().weights->size() - step::kWindowPage;
  for (FileUnit::Part part : unit.parts) {
    for (Bytes left = part.size; !left.is_zero(); left -= part.size) {
      part.size = std::min(left, room);
      part.in_window = part.offset % step::kWindowPage;
      pieces.push_back(part);
      part.offset += part.size;
      part.in_unit += part.size;
    }
  }
  const auto window_of = [&](std::size_t piece) -> Window& {
    return windows_[piece % windows_.size()];
  };
  for (std::size_t slot = 0; slot < windows_.size(); ++slot) NEAP_TRY(drop(slot));
  // Reads one piece while the previous one is copied.
  for (std::size_t i = 0; i <= pieces.size(); ++i) {
    if (i < pieces.size()) {
      const FileUnit::Part& piece = pieces[i];
      if (i < windows_.size()) NEAP_TRY(lane_.wait_for_fetch(i));
      if (i > 0) NEAP_TRY(lane_.wait_for_fetch(lane_slot));
      const arena::DiskRange range{piece.file, piece.offset,
                                   window_of(i).weights->data() + piece.in_window.count(),
                                   piece.size};
      window_of(i).reading = disk_.read({&range, 1});
      use(Kind::kWeights).disk_read += piece.size;
    }
    if (i == 0) continue;
    const FileUnit::Part& piece = pieces[i - 1];
    Window& window = window_of(i - 1);
    NEAP_TRY(wait(window.reading, Kind::kWeights));
    const arena::Transfer copy{to.region, to.weights + piece.in_unit, window.weights.get(),
                               piece.in_window, piece.size};
    NEAP_TRY(lane_.fetch(lane_slot, Kind::kWeights, {&copy, 1}, SlotLane::After::kEveryStore));
  }
  return lane_.wait_for_fetch(lane_slot);
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
      use(Kind::kWeights).disk_read += width;
    }
    arena::DiskLane::Batch batch = disk_.read(ranges);
    NEAP_TRY(wait(batch, Kind::kWeights));
    for (const arena::DiskRange& range : ranges) {
      std::memcpy(to, range.memory, width.count());
      to += width.count();
    }
  }
  return {};
}

Status DiskWindows::drop(std::size_t slot) {
  windows_[slot].coming = {};
  return windows_[slot].reading.wait();
}

Status DiskWindows::leave(std::size_t slot, const Slot& from, const arena::DiskStorage& gradients,
                          const Range& range) {
  NEAP_TRY(begin_writes());
  Window& window = windows_[slot];
  NEAP_TRY(wait(window.writing, Kind::kGradients));
  const arena::Transfer copy{from.region, from.gradients + range.first, window.gradients.get(),
                             range.first, range.size};
  NEAP_TRY(lane_.store(slot, Kind::kGradients, {&copy, 1}));
  window.leaving = &gradients;
  window.leaves = range;
  return {};
}

// Writes what was copied from the device earlier.
Status DiskWindows::begin_writes() {
  for (std::size_t slot = 0; slot < windows_.size(); ++slot) {
    Window& window = windows_[slot];
    const arena::DiskStorage* const to = std::exchange(window.leaving, nullptr);
    if (to == nullptr) continue;
    NEAP_TRY(lane_.wait_for_store(slot));
    const auto [first, size] = window.leaves;
    const arena::DiskRange range{&to->file(), first, window.gradients->data() + first.count(),
                                 size};
    window.writing = disk_.write({&range, 1});
    window.written = to;
    use(Kind::kGradients).disk_written += size;
  }
  return {};
}

Status DiskWindows::wait(arena::DiskLane::Batch& batch, Kind kind) {
  return wait_counted(batch, use(kind));
}

Status DiskWindows::close() {
  Status first = begin_writes();
  for (std::size_t slot = 0; slot < windows_.size(); ++slot) {
    windows_[slot].leaving = nullptr;
    (void)drop(slot);  // it is not needed any more
    Status done = wait(windows_[slot].writing, Kind::kGradients);
    if (first.ok()) first = std::move(done);
  }
  return first;
}

void DiskWindows::add_use(LinkUses& uses) {
  for (const Kind kind : step::kStreamedKinds)
    uses[index_of(kind)].add_disk(std::exchange(use(kind), {}));
}

}  // namespace neap::bridge
