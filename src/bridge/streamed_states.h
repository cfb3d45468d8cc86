// Optimizer states that rest in host memory and come to slots part by part while an update steps them.
//
// Model     A unit's host memory is pinned and has its states for life: loading and saving work there. In
//           an update parts come to slots of an arena region, are stepped, and go back, while others come.
// Threads   one at a time.
// Failure   Error.
// Cost      of host memory see arena/host_storage.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "bridge/slot_lane.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedStates {
 public:
  /// `computes`: the stream of the steps; `units`: their sizes. The arena outlives this.
  StreamedStates(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, const std::vector<Bytes>& units);

  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  [[nodiscard]] const arena::HostStorage& states(std::size_t unit) const { return *storage_[unit]; }

  /// A range of host storage and its place in a slot.
  struct Copy {
    const arena::HostStorage* storage = nullptr;
    step::StreamedKind kind = step::StreamedKind::kStates;
    Bytes storage_offset, slot_offset, size;
    bool fetched = true, stored = true;
  };
  using CopiesOf = std::function<std::vector<Copy>(std::size_t part)>;
  using Visit = std::function<void(std::size_t part, std::size_t slot)>;
  /// visit() for parts 0 .. parts - 1, in order, each while its copies are in a slot, which is resident.
  /// Everything was waited for when it returns. Parts do not overlap.
  void for_each(std::size_t parts, const CopiesOf& copies, const Visit& visit);

  [[nodiscard]] Result<LinkUses> take_use() { return lane_.take_use(); }

 private:
  [[nodiscard]] Status fetch(const std::vector<Copy>& copies, std::size_t slot);
  [[nodiscard]] Status store(const std::vector<Copy>& copies, std::size_t slot);
  [[nodiscard]] std::vector<arena::Transfer> transfers(const std::vector<Copy>& copies,
                                                       step::StreamedKind kind, std::size_t slot,
                                                       bool Copy::*which) const;

  std::vector<SlotPart> slots_;
  std::vector<std::unique_ptr<arena::HostStorage>> storage_;  // one a unit
  SlotLane lane_;
};

}  // namespace neap::bridge
