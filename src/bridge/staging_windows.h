// Pinned buffers in host memory ("staging buffers") between files and the device, used again and again.
//
// Model     Data is read from files into a buffer and copied to a slot of the device, or copied from a slot and written to
//           files. A read waits until the buffer's data was written and copied to the device. A write waits until it was
//           copied from the device. A range has the same offset within a page in the buffer as in its file.
// Threads   one at a time.
// Failure   Status; the data of a running transfer is then undefined.
// Cost      pinned host memory of `count` x `bytes`.
#pragma once

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

/// Waits for transfers and adds the time to `use`.
[[nodiscard]] Status wait_counted(arena::DiskLane::Batch& batch, LinkUse& use);

class StagingWindows {
 public:
  /// `bytes` are whole pages. `arena`, `lane` and `disk` must outlive it, and `disk` must be destroyed first.
  StagingWindows(arena::Arena& arena, SlotLane& lane, arena::DiskLane& disk, const std::string& tag,
                 std::size_t count, Bytes bytes);

  [[nodiscard]] std::size_t count() const { return windows_.size(); }
  [[nodiscard]] Bytes bytes() const { return bytes_; }

  /// A range of a file.
  struct Range {
    const arena::DiskFile* file = nullptr;
    Bytes offset, in_window, size;
  };
  /// Starts to read. Blocks until the window is free.
  [[nodiscard]] Status read(std::size_t window, std::span<const Range> ranges);
  /// Blocks until the last read has ended, or drops it. A dropped read counts neither bytes nor
  /// time.
  [[nodiscard]] Status wait_for_read(std::size_t window);
  [[nodiscard]] Status drop_read(std::size_t window);
  /// A range of a region of the device.
  struct Piece {
    arena::RegionId region = arena::RegionId::kNone;
    Bytes offset, in_window, size;
  };
  /// Starts to copy to a slot.
  [[nodiscard]] Status fetch(std::size_t window, std::size_t slot, step::StreamedKind kind,
                             std::span<const Piece> pieces, SlotLane::After after);
  /// Starts to copy from a slot. Blocks until the window was written. Copies to the device have ended, or the device's
  /// earlier work waits for them.
  [[nodiscard]] Status store(std::size_t window, std::size_t slot, step::StreamedKind kind,
                             std::span<const Piece> pieces);
  /// Starts to write. Blocks until the window's data was copied from the device.
  [[nodiscard]] Status write(std::size_t window, std::span<const Range> ranges);
  [[nodiscard]] Status wait_for_write(std::size_t window);
  /// Blocks until the window's data is on the device.
  [[nodiscard]] Status wait_for_fetch(std::size_t window);
  /// Waits for reads and writes of all windows. Returns the first failure of a write.
  [[nodiscard]] Status close();

  /// Bytes read and written since the last call, and how long they were waited for.
  [[nodiscard]] LinkUse take_use();

 private:
  struct Window {
    arena::DiskLane::Batch reading, writing;
    Bytes coming;                                   // of what is being read
    std::optional<SlotLane::Mark> fetched, stored;  // the last copies
  };
  [[nodiscard]] std::vector<arena::DiskRange> in_memory(std::size_t window,
                                                        std::span<const Range> ranges) const;
  [[nodiscard]] std::vector<arena::Transfer> transfers(std::size_t window,
                                                       std::span<const Piece> pieces) const;

  SlotLane& lane_;
  arena::DiskLane& disk_;
  Bytes bytes_;
  std::unique_ptr<arena::HostStorage> memory_;
  std::vector<Window> windows_;
  LinkUse use_;
};

}  // namespace neap::bridge
