// This rank's slice of a model's weights, or of their gradients, which rests in host memory: ranges of it come to slots.
//
// Model     The slice is pinned and has its contents for life: loading, saving and updates work there. In a phase a range
//           of weights comes to the place that it has in the whole unit, from which ranks gather
//           (train/sliced_weights.h). One of gradients comes to memory of its own, and leaves when something was added
//           to it (train/hosted_gradients.h).
// Threads   one at a time.
// Failure   Status; of copies under way at close().
// Cost      of host memory see arena/host_storage.h. A fetch queues one copy.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "base/status.h"
#include "bridge/slot_lane.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedSlices {
 public:
  /// `computes`: the stream of the passes; `slots`: of weights those of blocks, then the tables'. The arena outlives
  /// this.
  StreamedSlices(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, Bytes slice, step::StreamedKind kind);

  [[nodiscard]] const arena::HostStorage& slice() const { return *slice_; }
  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  /// Where whole units come to in a phase that generates, in their order.
  void set_generating(std::vector<SlotPart> units) { generating_ = std::move(units); }

  /// Bytes [from, from + size) of the slice, and where they come to.
  struct Range {
    Bytes from, size, to;
  };
  /// Fetches that follow begin behind the work that the device was given so far.
  [[nodiscard]] Status begin_after_work() { return lane_.begin_after_work(); }
  /// Begins to bring a range to a slot, behind what is stored from there.
  [[nodiscard]] Status fetch(std::size_t slot, const Range& range) {
    return fetch(slot, slots_[slot], range);
  }
  /// Begins to take it back, behind the work that the device was given before begin_after_work().
  [[nodiscard]] Status store(std::size_t slot, const Range& range);
  /// As fetch() to a unit's place where it generates, with the first slot's fetches.
  [[nodiscard]] Status fetch_generating(std::size_t unit, const Range& range) {
    return fetch(0, generating_.at(unit), range);
  }
  /// What `stream` is given from now on begins behind the slot's fetches. It is none that computes.
  [[nodiscard]] Status hold(device::StreamId stream, std::size_t slot) {
    return lane_.hold(stream, slot);
  }
  /// The same of the stream that computes.
  [[nodiscard]] Status wait_for_slot(std::size_t slot) { return lane_.wait_for_slot(slot); }
  /// A phase ends: everything was waited for. The slots may leave.
  [[nodiscard]] Status close() { return lane_.drain(); }

  [[nodiscard]] Result<LinkUses> take_use() { return lane_.take_use(); }

 private:
  [[nodiscard]] Status fetch(std::size_t slot, const SlotPart& part, const Range& range);
  [[nodiscard]] arena::Transfer transfer(const SlotPart& part, const Range& range) const {
    return {part.region, part.offset + range.to, slice_.get(), range.from, range.size};
  }

  std::vector<SlotPart> slots_, generating_;
  std::unique_ptr<arena::HostStorage> slice_;
  step::StreamedKind kind_;
  SlotLane lane_;
};

}  // namespace neap::bridge
