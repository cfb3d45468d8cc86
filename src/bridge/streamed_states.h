// Optimizer states that rest in host memory or on disk and come to slots part by part while an update steps them.
//
// Model     A unit's memory has its states for life: loading and saving work there. In
//           an update parts come to slots of an arena region, are stepped, and go back, while others come.
//           On the host it is pinned. On disk parts pass windows of pinned memory: a few are read ahead of those
//           that come to slots, and written behind them, while others are stepped.
// Threads   one at a time.
// Failure   Error. What an update that fails should have stored is then undefined.
// Cost      of host memory see arena/host_storage.h, of disks arena/disk_storage.h.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"
#include "bridge/disk_windows.h"
#include "bridge/slot_lane.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedStates {
 public:
  /// `computes`: the stream of the steps; `units`: their sizes. `window`: where these rest on disk, bytes of each of
  /// step::kUpdateWindows; zero: they rest on the host. The arena outlives this.
  StreamedStates(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, const std::vector<Bytes>& units, Bytes window = {});

  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  [[nodiscard]] Resting states(std::size_t unit) const;
  /// Bytes of a window; zero: they rest on the host.
  [[nodiscard]] Bytes window() const { return window_bytes_; }

  /// A range of what rests elsewhere and its place in a slot.
  struct Copy {
    Resting from;
    step::StreamedKind kind = step::StreamedKind::kStates;
    Bytes storage_offset, slot_offset, size;
    bool fetched = true, stored = true;
    Bytes window_offset{};  ///< of what rests on disk: in a page as in the storage
  };
  using CopiesOf = std::function<std::vector<Copy>(std::size_t part)>;
  using Visit = std::function<void(std::size_t part, std::size_t slot)>;
  /// visit() for parts 0 .. parts - 1, in order, each while its copies are in a slot, which is resident.
  /// Everything was waited for when it returns. Parts do not overlap.
  void for_each(std::size_t parts, const CopiesOf& copies, const Visit& visit);

  [[nodiscard]] Result<LinkUses> take_use();

 private:
  /// A part from when it is read to when it was written. Its number says which window it has.
  struct Moving {
    std::vector<Copy> copies;
    arena::DiskLane::Batch reading, writing;
  };
  void move(std::size_t parts, const CopiesOf& copies, const Visit& visit);
  [[nodiscard]] Moving& moving(std::size_t part) { return moving_[part % moving_.size()]; }
  void begin_read(std::size_t part);
  [[nodiscard]] Status begin_write(std::size_t part);
  [[nodiscard]] Status wait_for_writes();
  [[nodiscard]] Status stop();
  [[nodiscard]] Status fetch(std::size_t part);
  [[nodiscard]] Status store(std::size_t part);
  [[nodiscard]] std::vector<arena::Transfer> transfers(std::size_t part, step::StreamedKind kind,
                                                       bool Copy::*which);
  [[nodiscard]] std::vector<arena::DiskRange> ranges(std::size_t part, bool Copy::*which);
  [[nodiscard]] std::size_t slot_of(std::size_t part) const { return part % slots_.size(); }
  [[nodiscard]] Bytes window_of(std::size_t part) const {
    return window_bytes_ * (part % moving_.size());
  }
  [[nodiscard]] bool on_disk() const { return windows_ != nullptr; }

  std::vector<SlotPart> slots_;
  // One a unit, of one kind:
  std::vector<std::unique_ptr<arena::HostStorage>> hosts_;
  std::vector<std::unique_ptr<arena::DiskStorage>> disks_;
  std::unique_ptr<arena::HostStorage> windows_;  // all, where they rest on disk
  Bytes window_bytes_;
  SlotLane lane_;
  LinkUse disk_use_;
  std::vector<Moving> moving_;
  arena::DiskLane disk_;  // last: its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
