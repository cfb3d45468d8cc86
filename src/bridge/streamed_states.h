// Optimizer states in host memory or on disk. An update loads them part by part into prefetch
// buffers.
//
// Model     A unit's states are stored there for their lifetime; loading and saving use them there.
//           In an update, parts are loaded into slots of an arena region, updated, and copied back,
//           while others are loaded. In host memory the states are pinned. On disk, parts pass
//           through pinned staging buffers ("windows"): a few parts are read ahead of the loads,
//           and written after the copies back.
// Threads   one at a time.
// Failure   Error. After a failed update, the data that it should have stored is undefined.
// Cost      for host memory see arena/host_storage.h, for disks arena/disk_storage.h.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"
#include "bridge/disk_windows.h"
#include "bridge/slot_lane.h"
#include "bridge/staging_windows.h"
#include "bridge/streamed_blocks.h"

namespace neap::bridge {

class StreamedStates {
 public:
  /// `computes` is the stream of the updates; `units` are their sizes. `window` is the size of each
  /// of step::kUpdateWindows staging buffers if the states are on disk; zero: host memory. `arena`
  /// must outlive it.
  StreamedStates(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<SlotPart> slots, const std::vector<Bytes>& units, Bytes window = {});

  [[nodiscard]] const std::vector<SlotPart>& slots() const { return slots_; }
  [[nodiscard]] Resting states(std::size_t unit) const;
  /// Size of a staging buffer; zero: the states are in host memory.
  [[nodiscard]] Bytes window() const { return windows_ ? windows_->bytes() : Bytes(); }

  /// A range of offloaded states, and its place in a slot.
  struct Copy {
    Resting from;
    step::StreamedKind kind = step::StreamedKind::kStates;
    Bytes storage_offset, slot_offset, size;
    bool fetched = true, stored = true;
    Bytes window_offset{};  ///< for data on disk: same offset within a page as in the storage
  };
  using CopiesOf = std::function<std::vector<Copy>(std::size_t part)>;
  using Visit = std::function<void(std::size_t part, std::size_t slot)>;
  /// Calls visit() for parts 0 .. parts - 1, in order, each while its copies are in a resident
  /// slot. Everything has completed when it returns. Parts must not overlap.
  void for_each(std::size_t parts, const CopiesOf& copies, const Visit& visit);

  [[nodiscard]] Result<LinkUses> take_use();

 private:
  void move(std::size_t parts, const CopiesOf& copies, const Visit& visit);
  [[nodiscard]] Status begin_read(std::size_t part);
  [[nodiscard]] Status begin_write(std::size_t part);
  [[nodiscard]] Status stop();
  [[nodiscard]] Status fetch(std::size_t part);
  [[nodiscard]] Status store(std::size_t part);
  [[nodiscard]] std::vector<arena::Transfer> transfers(std::size_t part, step::StreamedKind kind,
                                                       bool Copy::*which);
  [[nodiscard]] std::vector<StagingWindows::Piece> pieces(std::size_t part, step::StreamedKind kind,
                                                          bool Copy::*which);
  [[nodiscard]] std::vector<StagingWindows::Range> ranges(std::size_t part, bool Copy::*which);
  [[nodiscard]] std::size_t slot_of(std::size_t part) const { return part % slots_.size(); }
  /// The staging buffer of a part. Also the number of its copies.
  [[nodiscard]] std::size_t window_of(std::size_t part) const { return part % copies_.size(); }

  std::vector<SlotPart> slots_;
  // One per unit, of one kind:
  std::vector<std::unique_ptr<arena::HostStorage>> hosts_;
  std::vector<std::unique_ptr<arena::DiskStorage>> disks_;
  SlotLane lane_;
  std::optional<StagingWindows> windows_;  // if the states are on disk
  std::vector<std::vector<Copy>> copies_;  // of parts that move
  arena::DiskLane disk_;  // last member, so that its jobs end before what they use is destroyed
};

}  // namespace neap::bridge
