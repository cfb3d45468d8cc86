// This rank's slice of a model's weights, or of their gradients, which rests in host memory or on disk: ranges of it come
// to slots.
//
// Model     The slice has its contents for life: loading, saving and updates work there. On the host it is pinned; on disk
//           a range passes a window of pinned memory, of which there are as many as slots. In a phase a range
//           of weights comes to the place that it has in the whole unit, from which ranks gather
//           (train/sliced_weights.h). Blocks take the first windows in turns, so that the range of the next one is read
//           to another window while one is in use. A range of gradients comes to memory of its own, and leaves when
//           something was added to it (train/hosted_gradients.h); it is read while others are added up.
// Threads   one at a time.
// Failure   Status; of copies under way at close().
// Cost      of host memory see arena/host_storage.h, of disks arena/disk_storage.h. A fetch queues one copy; the program
//           waits for what is read by then. Writes run beside it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"
#include "base/status.h"
#include "bridge/slot_lane.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedSlices {
 public:
  /// `computes`: the stream of the passes; `slots`: of weights those of blocks, then the tables'. `window`: where the
  /// slice rests on disk, bytes of each slot's: whole pages; zero: on the host. The arena outlives this.
  StreamedSlices(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, Bytes slice, step::StreamedKind kind,
                 Bytes window = {});

  [[nodiscard]] Resting slice() const { return {slice_.get(), disk_slice_.get()}; }
  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  /// A phase begins: loading and saving have ended.
  [[nodiscard]] Status open() { return disk_slice_ ? disk_slice_->settle() : Status(); }
  /// Bytes [from, from + size) of the slice, and where they come to.
  struct Range {
    Bytes from, size, to;
    [[nodiscard]] bool same_bytes(const Range& other) const {
      return from == other.from && size == other.size;
    }
  };
  /// Fetches that follow begin behind the work that the device was given so far.
  [[nodiscard]] Status begin_after_work() { return lane_.begin_after_work(); }
  /// Begins to bring a range to a slot, behind what is stored from there.
  [[nodiscard]] Status fetch(std::size_t slot, const Range& range) {
    return fetch(slot, slots_[slot], range);
  }
  /// The same in two: on disk the first call begins to read, the second one to copy what was read, if anything.
  [[nodiscard]] Status begin(std::size_t slot, const Range& range);
  [[nodiscard]] Status arrive(std::size_t slot);
  /// Of weights: begins to read what the next fetch to a block's slot, or where it generates, brings. Where that
  /// brings something else, it is read again.
  [[nodiscard]] Status read_ahead(const Range& range);
  /// What was read ahead is out of date.
  [[nodiscard]] Status forget_ahead();
  /// Begins to take it back, behind the work that the device was given before begin_after_work().
  [[nodiscard]] Status store(std::size_t slot, const Range& range);
  /// As fetch() to a unit's place where it generates, with the first slot's fetches.
  [[nodiscard]] Status fetch_to_generate(const SlotPart& unit, const Range& range) {
    return fetch(0, unit, range);
  }
  /// What `stream` is given from now on begins behind the slot's fetches. It is none that computes.
  [[nodiscard]] Status hold(device::StreamId stream, std::size_t slot) {
    return lane_.hold(stream, slot);
  }
  /// The same of the stream that computes.
  [[nodiscard]] Status wait_for_slot(std::size_t slot) { return lane_.wait_for_slot(slot); }
  /// A phase ends: everything was waited for. The slots may leave.
  [[nodiscard]] Status close();

  [[nodiscard]] Result<LinkUses> take_use();

 private:
  [[nodiscard]] Status fetch(std::size_t slot, const SlotPart& part, const Range& range);
  [[nodiscard]] arena::Transfer transfer(std::size_t window, const SlotPart& part,
                                         const Range& range) const;
  [[nodiscard]] Status begin_to(std::size_t slot, const SlotPart& part, const Range& range);
  [[nodiscard]] Status arrive_at(std::size_t slot, const SlotPart& part);
  [[nodiscard]] Status read(std::size_t window, const Range& range);
  // In a page as in the slice's.
  [[nodiscard]] Bytes in_window(std::size_t window, const Range& range) const;
  [[nodiscard]] arena::DiskRange in_slice(std::size_t window, const Range& range) const;
  /// What has left slots is written, or about to be.
  [[nodiscard]] Status begin_writes();

  std::vector<SlotPart> slots_;
  std::unique_ptr<arena::HostStorage> slice_, windows_;  // one of them, or windows and
  std::unique_ptr<arena::DiskStorage> disk_slice_;
  step::StreamedKind kind_;
  Bytes window_;
  SlotLane lane_;
  struct Window {
    std::size_t slot = 0;          // that it was copied to, or left, last
    std::optional<Range> leaving;  // not yet being written
    arena::DiskLane::Batch reading, writing;
  };
  struct Coming {
    std::size_t window = 0;
    Range range;
  };
  std::vector<Window> each_window_;
  std::vector<std::optional<Coming>> coming_;  // by slot
  std::optional<Coming> ahead_;
  std::size_t turns_ =
      0;  // windows that blocks take in turns; others belong to the slot with their number
  std::size_t turn_ = 0;
  LinkUse disk_use_;
  arena::DiskLane disk_;  // last: its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
