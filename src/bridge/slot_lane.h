// Copies between slots of device memory and host storage, ordered with what the device computes.
//
// Model     A slot is filled, used by work that the device is given, stored, and filled again. Copies and
//           work run side by side; only the device's stream waits for what it needs, not the program.
// Threads   one at a time.
// Failure   Status; what a copy under way should have written is then undefined.
// Cost      a driver call or two each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "arena/transfer_lane.h"
#include "base/status.h"

namespace neap::bridge {

/// What went over the link since it was asked last.
struct LinkUse {
  Bytes to_device, to_host;
  double wait_seconds = 0;  ///< of the program; on a GPU its stream waits instead
  [[nodiscard]] Bytes bytes() const { return to_device + to_host; }
  LinkUse& operator+=(const LinkUse& o);
};

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
  /// Begins to fill a slot.
  [[nodiscard]] Status fetch(std::size_t slot, std::span<const arena::Transfer> copies,
                             After after);
  /// What the device is given from now on begins after the slot's copies, in and out.
  [[nodiscard]] Status wait_for_slot(std::size_t slot);
  /// Copies that are queued from now on begin after the work that the device was given so far.
  [[nodiscard]] Status begin_after_work();
  /// Fetches that are queued from now on begin after every store so far.
  [[nodiscard]] Status fetch_after_stores();
  /// Begins to store a slot's contents.
  [[nodiscard]] Status store(std::size_t slot, std::span<const arena::Transfer> copies);
  /// Waits for all copies.
  [[nodiscard]] Status drain();
  [[nodiscard]] LinkUse take_use() { return std::exchange(use_, {}); }

 private:
  using Mark = arena::TransferLane::Mark;
  [[nodiscard]] Status remember(Mark mark);
  device::StreamId computes_;
  std::unique_ptr<arena::TransferLane> lane_;
  std::vector<std::optional<Mark>> filled_, stored_;  // by slot: its last copies
  std::optional<Mark> last_stored_;
  std::deque<Mark> not_waited_for_;  // in order
  LinkUse use_;
};

}  // namespace neap::bridge
