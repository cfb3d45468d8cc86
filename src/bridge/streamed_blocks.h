// The blocks and tables of a model that rest in host memory, a few of them on the device at a time.
//
// Model     A block rests in host memory, which is pinned, or on disk (bridge/disk_windows.h), and has its contents there
//           for life: loading and saving work there. Those of a frozen model may be in files of somebody else, which are
//           only read.
//           In a phase blocks come to slots, parts of arena regions at fixed addresses, while others
//           compute. Gradients of a trained model come with its blocks' backward and leave after it. Inputs of
//           blocks leave after their forward and come with their backward. Tables (step/table_turns.h) come to
//           the same memory in turns of their own. Where the model generates, all blocks come to parts of
//           their own.
// Threads   one at a time.
// Failure   Error; of release() and of copies under way at the next use() or close().
// Cost      of host memory see arena/host_storage.h. A use queues at most two copies.
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
#include "step/windowed_blocks.h"

namespace neap::bridge {

/// A part of a region that is resident while a phase uses it.
struct SlotPart {
  std::string name;  ///< the plan's
  arena::RegionId region = arena::RegionId::kNone;
  Bytes offset;
};

class StreamedBlocks final : public step::WindowedBlocks {
 public:
  struct Slot {
    SlotPart weights;
    std::optional<SlotPart> gradients{}, inputs{};  ///< of all slots or of none
  };
  struct UnitBytes {
    std::string name;
    Bytes weights, gradients, inputs{};  ///< none larger than a slot's; zero: there are none
  };
  struct Tables {
    std::vector<UnitBytes> units;
    step::TableUnits turns;    ///< of `units`
    std::optional<Slot> slot;  ///< in the memory of all slots, for the turns
  };
  /// Where blocks rest on disk, sizes of the windows that they pass (bridge/disk_windows.h); zeros: on the host.
  struct OnDisk {
    Bytes weights, gradients;
    bool in_files;  ///< those that read_from() names
  };
  /// `computes`: the stream of the passes. The arena outlives this.
  StreamedBlocks(arena::Arena& arena, device::StreamId computes, const std::string& tag,
                 std::vector<Slot> slots, const std::vector<UnitBytes>& blocks,
                 const Tables& tables, const OnDisk& disk = {});

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] const std::optional<Slot>& table_slot() const { return table_slot_; }
  struct Storage {
    std::string name;
    std::unique_ptr<arena::HostStorage> weights, gradients, inputs;  ///< null: there are none here
    std::unique_ptr<arena::DiskStorage> disk_weights, disk_gradients;
    FileUnit files;  ///< that weights are read from, where they rest on disk
    [[nodiscard]] Resting resting_weights() const { return {weights.get(), disk_weights.get()}; }
    [[nodiscard]] Resting resting_gradients() const {
      return {gradients.get(), disk_gradients.get()};
    }
    Bytes all_gradients;        ///< zero: it is frozen
    Bytes own_first, own_size;  ///< of complete gradients, that leave
    [[nodiscard]] DiskWindows::Range leaving(bool complete) const {
      return complete ? DiskWindows::Range{own_first, own_size}
                      : DiskWindows::Range{Bytes(), all_gradients};
    }
  };
  [[nodiscard]] const Storage& block(std::size_t i) const { return storage_[i]; }
  /// Null: it is not on the host.
  [[nodiscard]] const Storage* table(const std::string& name) const;
  /// Whether blocks are read from files of somebody else. They have no memory of their own then.
  [[nodiscard]] bool in_files() const { return on_disk_.in_files; }
  /// Which, and the tables with them: before the first phase, and again where other ones have the same weights. Fails
  /// where the windows are too small. `files` are those of the parts.
  [[nodiscard]] Status read_from(std::vector<FileUnit> blocks, std::vector<FileUnit> tables,
                                 std::vector<std::shared_ptr<const arena::DiskFile>> files);
  [[nodiscard]] bool reads_rows() const override { return in_files() && !tables_.empty(); }
  void read_rows(std::span<const std::int64_t> rows, Bytes width, std::byte* to) override;
  /// Of a unit's gradients, where nothing more is added to them, only so many bytes leave, from `first` on: others are
  /// another rank's.
  void keep_own(const std::string& name, Bytes first, Bytes size);

  /// A phase begins: the slots are resident and hold nothing. Fails where a file that is read was changed.
  [[nodiscard]] Status open();
  /// A block comes to a part that is resident and large enough, behind the work that the device was given so far. What it
  /// is given next begins after that. All blocks come in order; the next one is read from disk meanwhile.
  [[nodiscard]] Status bring_to_generate(std::size_t block, const SlotPart& part);
  /// It ends: everything was waited for. The slots may leave.
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
  [[nodiscard]] arena::Transfer inputs_of(std::size_t block, std::size_t slot) const;
  [[nodiscard]] Status leave(std::size_t in, const SlotPart& gradients, const Storage& unit,
                             bool complete);

  [[nodiscard]] DiskWindows::Slot place_of(std::size_t slot) const;

  std::vector<Slot> slots_;
  std::optional<Slot> table_slot_;  // of the lane the one behind `slots_`
  std::vector<Storage> storage_, tables_;
  SlotLane lane_;
  std::optional<DiskWindows> disk_;
  OnDisk on_disk_;
  std::vector<std::shared_ptr<const arena::DiskFile>> files_;  // of somebody else
  Bytes input_bytes_;                                          // of a block and a group
};

}  // namespace neap::bridge
