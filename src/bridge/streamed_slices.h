// This rank's ZeRO shard of a model's weights or gradients, in host memory or on disk. Ranges of it
// are loaded into prefetch buffers.
//
// Model     The shard is stored there for its lifetime; loading, saving and updates use it there.
//           In host memory it is pinned. On disk, a range passes through a pinned staging buffer
//           ("window"), of which there is one per slot. In a phase, a range of weights is loaded to
//           its place in the whole unit, from which ranks all-gather (train/sliced_weights.h).
//           Blocks use the first staging buffers in turn, so the next range is read while another
//           buffer is in use. A range of gradients is loaded into memory of its own, and copied
//           back after it changed (train/sharded_gradients.h). It is read while other gradients are
//           reduced.
// Threads   one at a time.
// Failure   Status; failures of running copies are returned by close().
// Cost      for host memory see arena/host_storage.h, for disks arena/disk_storage.h. A fetch
//           queues one copy; the host waits for data that must be read first. Writes run in the
//           background.
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
#include "bridge/staging_windows.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedSlices {
 public:
  /// `computes` is the stream of the passes. `slots` of weights are those of blocks, then the
  /// tables'. `window` is the size of each staging buffer if the shard is on disk, in whole pages;
  /// zero: host memory. `arena` must outlive it.
  StreamedSlices(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, Bytes slice, step::StreamedKind kind,
                 Bytes window = {});

  [[nodiscard]] Resting slice() const { return {slice_.get(), disk_slice_.get()}; }
  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  /// Begins a phase, after loading and saving have ended.
  [[nodiscard]] Status open() { return disk_slice_ ? disk_slice_->settle() : Status(); }
  /// Bytes [from, from + size) of the shard, and their destination.
  struct Range {
    Bytes from, size, to;
    [[nodiscard]] bool same_bytes(const Range& other) const {
      return from == other.from && size == other.size;
    }
  };
  /// Later fetches start after the device's work so far.
  [[nodiscard]] Status begin_after_work() { return lane_.begin_after_work(); }
  /// Starts to load a range into a slot, after running stores from it.
  [[nodiscard]] Status fetch(std::size_t slot, const Range& range) {
    return fetch(slot, slots_[slot], range);
  }
  /// fetch() in two calls. For a shard on disk, begin() starts to read, and arrive() starts to copy
  /// the data, if any.
  [[nodiscard]] Status begin(std::size_t slot, const Range& range);
  [[nodiscard]] Status arrive(std::size_t slot);
  /// For weights: reads the range of the next fetch to a block's slot, or to rollout weights, in
  /// advance. A fetch of another range reads that again.
  [[nodiscard]] Status read_ahead(const Range& range);
  /// Drops data that were read in advance, because they are stale.
  [[nodiscard]] Status forget_ahead();
  /// Starts to copy a range back, after the device's work before begin_after_work().
  [[nodiscard]] Status store(std::size_t slot, const Range& range);
  /// As fetch(), to a unit of the rollout weights, counted as the first slot's fetch.
  [[nodiscard]] Status fetch_to_generate(const SlotPart& unit, const Range& range) {
    return fetch(0, unit, range);
  }
  /// Later work of `stream`, which is not a compute stream, waits for the slot's fetches.
  [[nodiscard]] Status hold(device::StreamId stream, std::size_t slot) {
    return lane_.hold(stream, slot);
  }
  /// The same for the compute stream.
  [[nodiscard]] Status wait_for_slot(std::size_t slot) { return lane_.wait_for_slot(slot); }
  /// Ends a phase: waits for everything. The slots may be unmapped afterwards.
  [[nodiscard]] Status close();

  [[nodiscard]] Result<LinkUses> take_use();

 private:
  [[nodiscard]] Status fetch(std::size_t slot, const SlotPart& part, const Range& range);
  [[nodiscard]] arena::Transfer from_host(const SlotPart& part, const Range& range) const;
  [[nodiscard]] StagingWindows::Piece from_window(const SlotPart& part, const Range& range) const;
  [[nodiscard]] Status begin_to(std::size_t slot, const SlotPart& part, const Range& range);
  [[nodiscard]] Status arrive_at(std::size_t slot, const SlotPart& part);
  [[nodiscard]] Status read(std::size_t window, const Range& range);
  [[nodiscard]] StagingWindows::Range in_slice(const Range& range) const;
  /// Starts to write data that were copied from slots.
  [[nodiscard]] Status begin_writes();

  std::vector<SlotPart> slots_;
  std::unique_ptr<arena::HostStorage> slice_;  // or:
  std::unique_ptr<arena::DiskStorage> disk_slice_;
  step::StreamedKind kind_;
  SlotLane lane_;
  std::optional<StagingWindows> windows_;  // for disk_slice_
  struct Coming {
    std::size_t window = 0;
    Range range;
  };
  std::vector<std::optional<Range>> leaving_;  // by window; not yet being written
  std::vector<std::optional<Coming>> coming_;  // by slot
  std::optional<Coming> ahead_;
  // Number of windows that blocks use in turn; other slots have the window with their number.
  std::size_t turns_ = 0;
  std::size_t turn_ = 0;
  arena::DiskLane disk_;  // last member, so that its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
