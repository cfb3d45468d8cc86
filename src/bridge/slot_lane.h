// Copies between prefetch buffers ("slots") and host storage, ordered with the device's
// computation.
//
// Model     A buffer is filled, used by work of the device, stored, and filled again. Copies
//           overlap with computation. Only the device's stream waits for what it needs; the host
//           does not.
// Threads   one at a time.
// Failure   Status; the data of a running copy is then undefined.
// Cost      one or two driver calls per function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "arena/transfer_lane.h"
#include "base/status.h"
#include "step/units/streamed_kind.h"

namespace neap::bridge {

/// Bytes over the link, and the time that the device's work waited for them.
struct LinkUse {
  Bytes to_device, to_host;
  double visible_seconds = 0;
  // For data on disk; the seconds are host waits.
  Bytes disk_read, disk_written;
  double disk_seconds = 0;
  void add_disk(const LinkUse& other) {
    disk_read += other.disk_read;
    disk_written += other.disk_written;
    disk_seconds += other.disk_seconds;
  }
};
using LinkUses = std::array<LinkUse, step::kStreamedKinds.size()>;  ///< by kind

class SlotLane {
 public:
  using Mark = arena::TransferLane::Mark;  ///< the end of a copy

  /// `computes` is the compute stream. `arena` must outlive the lane.
  SlotLane(arena::Arena& arena, device::StreamId computes, std::size_t slots);

  /// The stores that a fetch waits for, in addition to work before the last begin_after_work().
  enum class After : std::uint8_t {
    kNothing,
    kStoreOfSlot,  ///< the store of its slot, which it overwrites
    kEveryStore,   ///< all stores, because it reads what another slot may be storing
  };
  /// Starts to fill a slot, or its part for one kind of data.
  [[nodiscard]] Result<Mark> fetch(std::size_t slot, step::StreamedKind kind,
                                   std::span<const arena::Transfer> copies, After after);
  /// Later work of the device waits for the slot's copies in both directions.
  [[nodiscard]] Status wait_for_slot(std::size_t slot);
  /// The same for a stream that does not compute; its waits are not counted. The compute stream
  /// must also wait for the slot.
  [[nodiscard]] Status hold(device::StreamId stream, std::size_t slot);
  /// Copies that are queued later start after the device's work so far.
  [[nodiscard]] Status begin_after_work();
  /// Fetches that are queued later start after all stores so far.
  [[nodiscard]] Status fetch_after_stores();
  /// Starts to store a slot's part for one kind of data.
  [[nodiscard]] Result<Mark> store(std::size_t slot, step::StreamedKind kind,
                                   std::span<const arena::Transfer> copies);
  /// Blocks until the copy, and earlier ones in its direction, have ended.
  [[nodiscard]] Status wait(Mark mark) { return lane_->wait(mark); }
  /// Waits for all copies.
  [[nodiscard]] Status drain();
  /// The use since the last call. Blocks until the device's work has passed its waits.
  [[nodiscard]] Result<LinkUses> take_use();

 private:
  struct Slot {
    std::optional<Mark> stored;                 // the slot's last store
    std::map<Mark, step::StreamedKind> awaits;  // waits of the compute stream, in queue order
  };
  [[nodiscard]] Status queued(std::size_t slot, step::StreamedKind kind, Mark mark);
  device::StreamId computes_;
  std::unique_ptr<arena::TransferLane> lane_;
  std::vector<Slot> slots_;
  std::optional<Mark> last_stored_;
  std::deque<Mark> not_waited_for_;  // in order
  LinkUses use_{};
};

}  // namespace neap::bridge
