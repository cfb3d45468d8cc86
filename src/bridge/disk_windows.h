// Transfers units between disk and prefetch buffers on the device, through pinned staging buffers
// ("windows") in host memory.
//
// Model     Each prefetch buffer has two staging buffers, for weights and for gradients. A unit is read into them while others
//           compute, and copied to the device when it is used. Gradients are copied to a staging
//           buffer, and written when the next ones leave. Frozen weights may be in external files,
//           in any order and at any offset. A staging buffer places each range at the same offset
//           within a page as the file.
// Threads   one at a time.
// Failure   Status; the data of a running transfer is then undefined.
// Cost      pinned host memory of the size of the prefetch buffers.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"
#include "base/status.h"
#include "bridge/slot_lane.h"
#include "bridge/staging_windows.h"

namespace neap::bridge {

/// Where data is stored: exactly one of the two is set.
struct Resting {
  const arena::HostStorage* host = nullptr;
  const arena::DiskStorage* disk = nullptr;
  [[nodiscard]] std::byte* data() const { return host != nullptr ? host->data() : disk->data(); }
};

/// The location of a unit in files: the whole unit at once, or each parameter separately.
struct FileUnit {
  struct Part {
    const arena::DiskFile* file = nullptr;
    Bytes offset, size;  ///< in the file
    Bytes in_unit{};
    Bytes in_window{};  ///< same offset within a page as in the file
    [[nodiscard]] StagingWindows::Range range() const { return {file, offset, in_window, size}; }
  };
  std::vector<Part> parts;
  /// Assigns separate pages of a staging buffer to each part. Returns the bytes needed.
  [[nodiscard]] Bytes place();
};

class DiskWindows {
 public:
  /// `slots` is the number of prefetch buffers. `weights` and `gradients` are the sizes of the
  /// staging buffers: whole pages for the largest unit; zero without gradients. `arena` and `lane`
  /// must outlive it.
  DiskWindows(arena::Arena& arena, SlotLane& lane, const std::string& tag, std::size_t slots,
              Bytes weights, Bytes gradients);

  /// Weights and gradients of a unit to load; null parts are not loaded.
  struct Coming {
    const FileUnit* weights = nullptr;
    const arena::DiskStorage* gradients = nullptr;
  };
  /// Starts reading. Data that was read for the slot earlier and not yet copied is dropped.
  [[nodiscard]] Status begin(std::size_t slot, const Coming& unit);
  /// Places within a slot, as transfers have them.
  struct Slot {
    arena::RegionId region = arena::RegionId::kNone;
    Bytes weights, gradients;
  };
  /// Starts to copy the data that were read for the slot to it, if any.
  [[nodiscard]] Status arrive(std::size_t slot, const Slot& to);
  /// Loads a unit into `to` in pieces, through the staging buffers of all slots, whose contents are
  /// lost. It uses slot `lane_slot` of the lane.
  [[nodiscard]] Status pass(std::size_t lane_slot, const FileUnit& unit, const Slot& to);
  /// Reads rows of `width` bytes of a matrix, one after another. Blocks until they are read.
  [[nodiscard]] Status read_rows(const FileUnit::Part& matrix, Bytes width,
                                 std::span<const std::int64_t> rows, std::byte* to);
  /// Drops data that were read for the slot.
  [[nodiscard]] Status drop(std::size_t slot);
  /// A range of a unit's gradients.
  struct Range {
    Bytes first, size;
  };
  /// Starts copying gradients from a slot that holds all gradients of the unit.
  [[nodiscard]] Status leave(std::size_t slot, const Slot& from,
                             const arena::DiskStorage& gradients, const Range& range);
  /// Waits until no transfer is running and all gradients are in the files.
  [[nodiscard]] Status close();

  /// Adds the bytes read and written since the last call.
  void add_use(LinkUses& uses);

 private:
  struct Moving {
    Coming coming;
    // The copy of gradients from the slot has started, but not the write.
    const arena::DiskStorage* leaving = nullptr;
    Range leaves;                                 // which part of them
    const arena::DiskStorage* written = nullptr;  // destination of the last write
  };
  [[nodiscard]] Status begin_writes();

  std::vector<Moving> moving_;  // by slot
  StagingWindows weights_;
  std::optional<StagingWindows> gradients_;
  LinkUse rows_use_;
  arena::DiskLane disk_;  // last member, so that its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
