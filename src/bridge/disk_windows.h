// Units on disk on their way to slots of device memory and back: each slot has windows of pinned host memory.
//
// Model     What a slot lacks is read to its windows while others compute, and is copied to the slot when that is used.
//           Gradients leave a slot for its window, and are written from there when later ones leave. Weights that never
//           change may be in files of somebody else, in any order and anywhere in a page: a window has a place for each
//           range that lies in a page as that does.
// Threads   one at a time.
// Failure   Status; what a transfer under way should have written is then undefined.
// Cost      pinned host memory as large as the slots.
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

namespace neap::bridge {

/// Where something rests: one of the two.
struct Resting {
  const arena::HostStorage* host = nullptr;
  const arena::DiskStorage* disk = nullptr;
  [[nodiscard]] std::byte* data() const { return host != nullptr ? host->data() : disk->data(); }
};

/// What files have of a unit: all of it in one, or each parameter somewhere.
struct FileUnit {
  struct Part {
    const arena::DiskFile* file = nullptr;
    Bytes offset, size;  ///< in the file
    Bytes in_unit{};
    Bytes in_window{};  ///< in a page as in the file
  };
  std::vector<Part> parts;
  /// Gives each part pages of its own in a window. How many bytes these take.
  [[nodiscard]] Bytes place();
};

/// Waits for transfers; the time is `use`'s.
[[nodiscard]] Status wait_counted(arena::DiskLane::Batch& batch, LinkUse& use);

class DiskWindows {
 public:
  /// For as many slots. `weights`, `gradients`: whole pages as large as the largest unit's; without gradients zero. The
  /// first two outlive this.
  DiskWindows(arena::Arena& arena, SlotLane& lane, const std::string& tag, std::size_t slots,
              Bytes weights, Bytes gradients);

  /// A unit's weights and gradients that come to a slot; null: not these.
  struct Coming {
    const FileUnit* weights = nullptr;
    const arena::DiskStorage* gradients = nullptr;
  };
  /// Begins to read; what was read for the slot before and has not come there is dropped.
  [[nodiscard]] Status begin(std::size_t slot, const Coming& unit);
  /// Places of a slot, as a transfer has them.
  struct Slot {
    arena::RegionId region = arena::RegionId::kNone;
    Bytes weights, gradients;
  };
  /// Begins to copy what was read for the slot to it, if anything.
  [[nodiscard]] Status arrive(std::size_t slot, const Slot& to);
  /// Brings a unit, in pieces by the windows of all slots, whose contents are lost: to `to`, with the fetches of a slot of
  /// the lane.
  [[nodiscard]] Status pass(std::size_t lane_slot, const FileUnit& unit, const Slot& to);
  /// Rows of so many bytes of a matrix, one behind another. Blocks until they are there.
  [[nodiscard]] Status read_rows(const FileUnit::Part& matrix, Bytes width,
                                 std::span<const std::int64_t> rows, std::byte* to);
  /// It will not be used.
  [[nodiscard]] Status drop(std::size_t slot);
  /// Bytes of a unit's gradients.
  struct Range {
    Bytes first, size;
  };
  /// Begins to take gradients away from a slot, where all of the unit's are.
  [[nodiscard]] Status leave(std::size_t slot, const Slot& from,
                             const arena::DiskStorage& gradients, const Range& range);
  /// Nothing is under way; what left is in the files.
  [[nodiscard]] Status close();

  /// Adds what was read and written since the last call.
  void add_use(LinkUses& uses);

 private:
  struct Window {
    std::unique_ptr<arena::HostStorage> weights, gradients;
    Coming coming;
    const arena::DiskStorage* leaving = nullptr;  // in `gradients`, not yet being written
    Range leaves;                                 // of them
    const arena::DiskStorage* written = nullptr;  // from there
    arena::DiskLane::Batch reading, writing;
  };
  [[nodiscard]] Status begin_writes();
  [[nodiscard]] Status wait(arena::DiskLane::Batch& batch, step::StreamedKind kind);
  [[nodiscard]] LinkUse& use(step::StreamedKind kind) { return uses_[index_of(kind)]; }

  SlotLane& lane_;
  std::vector<Window> windows_;
  LinkUses uses_{};
  arena::DiskLane disk_;  // last: its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
