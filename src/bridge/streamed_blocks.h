// Layer-wise offload: the blocks and tables of a model are in host memory, and a few of them are on
// the device at a time.
//
// Model     A block is in pinned host memory or on disk (bridge/disk_windows.h) for its lifetime;
//           loading and saving use it there. Blocks of a frozen model may be in external files,
//           which are only read. In a phase, blocks are loaded into prefetch buffers while others
//           compute. The buffers are parts of arena regions at fixed addresses. Gradients of
//           trained blocks are loaded for the block's backward and copied back after it. Inputs of
//           blocks are copied to the host after their forward and loaded for their backward. Tables
//           (step/units/table_turns.h) use the same memory at other times. For rollouts, all blocks are
//           loaded into the rollout weights. Inputs can pass through buffers without the weights.
// Threads   one at a time.
// Failure   Error. Failures of release() and of running copies are thrown by the next use() or
//           close().
// Cost      for host memory see arena/host_storage.h. A use queues at most two copies.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "base/status.h"
#include "bridge/disk_windows.h"
#include "bridge/slot_lane.h"
#include "step/units/windowed_blocks.h"

namespace neap::bridge {

/// A part of a region that is resident while a phase uses it.
struct SlotPart {
  std::string name;  ///< the plan's name
  arena::RegionId region = arena::RegionId::kNone;
  Bytes offset;
};

class StreamedBlocks final : public step::WindowedBlocks {
 public:
  struct Slot {
    std::optional<SlotPart> weights{}, gradients{}, inputs{};  ///< set for all slots or for none
  };
  struct UnitBytes {
    std::string name;
    /// Weights and gradients fit into a slot. Inputs have a slot's size for each pass that waits for
    /// its backward. Zero: there are none.
    Bytes weights, gradients, inputs{};
  };
  struct Tables {
    std::vector<UnitBytes> units;
    step::TableUnits turns;    ///< numbers in `units`
    std::optional<Slot> slot;  ///< buffer for tables, which overlaps all slots
  };
  /// For blocks on disk: sizes of the staging buffers (bridge/disk_windows.h); zeros: blocks are in
  /// host memory.
  struct OnDisk {
    Bytes weights, gradients;
    bool in_files;  ///< weights are in the files that read_from() names
  };
  /// `computes` is the stream of the passes. `input_passes` passes may have kept inputs and wait for
  /// their backward. `arena` must outlive it.
  StreamedBlocks(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<Slot> slots, const std::vector<UnitBytes>& blocks,
                 const Tables& tables, const OnDisk& disk = {}, std::int64_t input_passes = 1);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] const std::optional<Slot>& table_slot() const { return table_slot_; }
  struct Storage {
    std::string name;
    std::unique_ptr<arena::HostStorage> weights, gradients, inputs;  ///< null: not in host memory
    std::unique_ptr<arena::DiskStorage> disk_weights, disk_gradients;
    FileUnit files;  ///< for data on disk: where weights are read from
    [[nodiscard]] Resting resting_weights() const { return {weights.get(), disk_weights.get()}; }
    [[nodiscard]] Resting resting_gradients() const {
      return {gradients.get(), disk_gradients.get()};
    }
    std::vector<Bytes> input_sizes;  ///< of the passes that have inputs here
    Bytes all_gradients;             ///< zero: it is frozen
    Bytes own_first, own_size;       ///< the range of complete gradients that is copied to the host
    [[nodiscard]] DiskWindows::Range leaving(bool complete) const {
      return complete ? DiskWindows::Range{own_first, own_size}
                      : DiskWindows::Range{Bytes(), all_gradients};
    }
  };
  [[nodiscard]] const Storage& block(std::size_t i) const { return storage_[i]; }
  /// Null if the table is not offloaded.
  [[nodiscard]] const Storage* table(const std::string& name) const;
  /// Whether blocks are read from external files. Then they have no memory of their own.
  [[nodiscard]] bool in_files() const { return on_disk_.in_files; }
  /// Sets the files of blocks and tables, which `files` keeps open. Call it before the first phase,
  /// and again if other files have the same weights. Fails if the staging buffers are too small.
  [[nodiscard]] Status read_from(std::vector<FileUnit> blocks, std::vector<FileUnit> tables,
                                 std::vector<std::shared_ptr<const arena::DiskFile>> files);
  [[nodiscard]] bool reads_rows() const override { return in_files() && !tables_.empty(); }
  void read_rows(std::span<const std::int64_t> rows, Bytes width, std::byte* to) override;
  /// When a unit's gradients are complete, only `size` bytes starting at `first` are copied to the
  /// host: the others belong to another rank.
  void keep_own(const std::string& name, Bytes first, Bytes size);

  /// Begins a phase: the slots are resident and empty. Fails if a file that is read was changed.
  [[nodiscard]] Status open();
  /// Loads a block into a resident part that is large enough. The copy starts after the device's
  /// work so far, and later work waits for it. Blocks must be loaded in order; the next one is read
  /// from disk meanwhile.
  [[nodiscard]] Status bring_to_generate(std::size_t block, const SlotPart& part);
  /// Ends the phase: waits for everything. The slots may be unmapped afterwards.
  [[nodiscard]] Status close();

  void set_input_bytes(std::int64_t bytes) override {
    input_bytes_ = Bytes(static_cast<std::uint64_t>(bytes));
  }

  [[nodiscard]] Result<LinkUses> take_use();

 private:
  [[nodiscard]] Status begin_after_work() override { return lane_.begin_after_work(); }
  [[nodiscard]] Status bring(step::BlockWindow::Place place) override;
  [[nodiscard]] Status wait_for_slot(std::size_t slot) override;
  [[nodiscard]] Status leave(std::size_t block, step::BlockWindow::Leaving what) override;
  [[nodiscard]] Status begin_turn(step::Table table, const step::TableTurns::Turn& turn) override;
  [[nodiscard]] Status end_turn(const step::TableTurns::Turn& turn) override;
  [[nodiscard]] arena::Transfer inputs_of(const Storage& block, std::size_t slot,
                                          std::size_t pass) const;
  [[nodiscard]] Status leave(std::size_t in, const SlotPart& gradients, const Storage& unit,
                             bool complete);

  [[nodiscard]] DiskWindows::Slot place_of(std::size_t slot) const;

  std::vector<Slot> slots_;
  std::optional<Slot> table_slot_;  // in the lane, the slot after `slots_`
  std::vector<Storage> storage_, tables_;
  SlotLane lane_;
  std::optional<DiskWindows> disk_;
  OnDisk on_disk_;
  std::vector<std::shared_ptr<const arena::DiskFile>> files_;  // external files
  Bytes input_bytes_;         // of a block and a group of micro-batches
  std::size_t input_passes_;  // that wait for their backward
};

}  // namespace neap::bridge
