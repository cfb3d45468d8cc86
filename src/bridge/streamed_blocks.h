// The blocks of a model that rest in host memory, a few of them on the device at a time.
//
// Model     A block's host memory is pinned and has its contents for life: loading and saving work there.
//           In a phase blocks come to slots, parts of arena regions at fixed addresses, while others
//           compute. Gradients of a trained model come with its blocks' backward and leave after it. Where
//           the model generates, all blocks come to parts of their own.
// Threads   one at a time.
// Failure   Error; of release() and of copies under way at the next use() or close().
// Cost      of host memory see arena/host_storage.h. A use queues at most two copies.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "base/status.h"
#include "bridge/slot_lane.h"
#include "step/units.h"

namespace neap::bridge {

/// A part of a region that is resident while a phase uses it.
struct SlotPart {
  std::string name;  ///< the plan's
  arena::RegionId region = arena::RegionId::kNone;
  Bytes offset;
};

class StreamedBlocks final : public step::BlockSlots {
 public:
  struct Slot {
    SlotPart weights;
    std::optional<SlotPart> gradients;  ///< of all slots or of none
  };
  struct BlockBytes {
    Bytes weights, gradients;  ///< none larger than a slot's
  };
  /// `table`: of the embedding, zero where it is on the device. The arena outlives this.
  StreamedBlocks(arena::Arena& arena, const std::string& tag, std::vector<Slot> slots,
                 const std::vector<BlockBytes>& blocks, Bytes table);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] const arena::HostStorage& weights(std::size_t block) const {
    return *storage_[block].weights;
  }
  /// Null: the model is frozen.
  [[nodiscard]] const arena::HostStorage* gradients(std::size_t block) const {
    return storage_[block].gradients.get();
  }
  /// The embedding; null: it is on the device.
  [[nodiscard]] const arena::HostStorage* table() const { return table_.get(); }

  /// A phase begins: the slots are resident and hold nothing.
  void open();
  /// All blocks come to the parts of their numbers, which are resident and large enough. What the device
  /// is given next begins after that.
  [[nodiscard]] Status gather(const std::vector<SlotPart>& parts);
  /// It ends: everything was waited for. The slots may leave.
  [[nodiscard]] Status close();

  void expect(step::Sweep sweep, std::int64_t passes) override;
  [[nodiscard]] Place use(std::size_t block, step::BlockUse how) override;
  void release(std::size_t block) noexcept override;

  [[nodiscard]] LinkUse take_use() { return lane_.take_use(); }

 private:
  struct Storage {
    std::unique_ptr<arena::HostStorage> weights, gradients;
  };
  [[nodiscard]] Status bring(step::BlockWindow::Place place);
  [[nodiscard]] Status bring_expected();
  [[nodiscard]] Status leave(std::size_t block, std::size_t slot);

  std::vector<Slot> slots_;
  std::vector<Storage> storage_;  // one a block
  std::unique_ptr<arena::HostStorage> table_;
  SlotLane lane_;
  step::BlockWindow window_;
  Status failed_;
};

}  // namespace neap::bridge
