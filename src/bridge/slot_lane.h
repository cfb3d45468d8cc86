// Copies between slots of device memory and host storage, ordered with what the device computes.
//
// Model     A slot is filled, used by work that the device is given, stored, and filled again. Copies and
//           work run side by side; only the device's stream waits for what it needs, not the program.
// Threads   one at a time.
// Failure   Status; what a copy under way should have written is then undefined.
// Cost      a driver call or two each.
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
#include "step/streamed_kind.h"

namespace neap::bridge {

/// What went over the link, and how long the device's work waited for it.
struct LinkUse {
  Bytes to_device, to_host;
  double visible_seconds = 0;
  // Of what rests on disk; seconds are those that the program waited.
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
  /// `computes`: the stream of the work. `arena` outlives the lane.
  SlotLane(arena::Arena& arena, device::StreamId computes, std::size_t slots);

  /// What a fetch waits for besides the work before the last begin_after_work().
  enum class After : std::uint8_t {
    kNothing,
    kStoreOfSlot,  ///< it overwrites what is being stored
    kEveryStore,   ///< and reads what another slot may be storing
  };
  /// Begins to fill a slot, or what of it holds a kind.
  [[nodiscard]] Status fetch(std::size_t slot, step::StreamedKind kind,
                             std::span<const arena::Transfer> copies, After after);
  /// What the device is given from now on begins after the slot's copies, in and out.
  [[nodiscard]] Status wait_for_slot(std::size_t slot);
  /// The same of another stream than the work's, whose waits nobody counts. The work has to wait for the slot, too.
  [[nodiscard]] Status hold(device::StreamId stream, std::size_t slot);
  /// Copies that are queued from now on begin after the work that the device was given so far.
  [[nodiscard]] Status begin_after_work();
  /// Fetches that are queued from now on begin after every store so far.
  [[nodiscard]] Status fetch_after_stores();
  /// Begins to store what of a slot holds a kind.
  [[nodiscard]] Status store(std::size_t slot, step::StreamedKind kind,
                             std::span<const arena::Transfer> copies);
  /// Blocks until the slot's last fetch has ended.
  [[nodiscard]] Status wait_for_fetch(std::size_t slot);
  /// Blocks until the slot's last store has ended.
  [[nodiscard]] Status wait_for_store(std::size_t slot);
  /// Waits for all copies.
  [[nodiscard]] Status drain();
  /// Since the last call. Blocks until the device's work has waited for what it waits for.
  [[nodiscard]] Result<LinkUses> take_use();

 private:
  using Mark = arena::TransferLane::Mark;
  struct Slot {
    std::optional<Mark> fetched, stored;  // its last ones
    std::map<Mark, step::StreamedKind>
        awaits;  // by the work; in the order in which they were queued
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
