// The blocks of a model whose weights rest in host memory, a few of them on the device at a time.
//
// Model     A block's host memory is pinned and has its contents for life: loading and saving work there.
//           In a phase blocks come to slots, parts of an arena region at fixed addresses, while others
//           compute; the device's stream waits for a block, not the program.
// Threads   one at a time.
// Failure   Error; of release() and of copies under way at the next use() or close().
// Cost      of host memory see arena/host_storage.h. A use queues at most one copy.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"
#include "arena/transfer_lane.h"
#include "base/status.h"
#include "step/units.h"

namespace neap::bridge {

class StreamedBlocks final : public step::BlockSlots {
 public:
  /// A part of a region that is resident while a phase uses blocks.
  struct Slot {
    arena::RegionId region = arena::RegionId::kNone;
    Bytes offset, bytes;
  };
  /// `blocks`: their sizes, none larger than a slot; `table`: of the embedding, zero where it is on the
  /// device. The arena outlives this.
  StreamedBlocks(arena::Arena& arena, const std::string& tag, std::vector<Slot> slots,
                 const std::vector<Bytes>& blocks, Bytes table);

  [[nodiscard]] std::size_t slots() const { return slots_.size(); }
  [[nodiscard]] std::byte* host(std::size_t block) const { return storage_[block]->data(); }

  /// The embedding; null: it is on the device.
  [[nodiscard]] std::byte* table() const { return table_ ? table_->data() : nullptr; }

  /// A phase begins: the slots are resident and hold nothing.
  void open();
  /// It ends: everything was waited for. The slots may leave.
  [[nodiscard]] Status close();

  void expect(step::Sweep sweep, std::int64_t passes) override;
  [[nodiscard]] std::size_t use(std::size_t block) override;
  void release(std::size_t block) noexcept override;

  /// Since the last call.
  struct Use {
    Bytes fetched;
    double wait_seconds = 0;  ///< of the program; on a GPU its stream waits instead
  };
  [[nodiscard]] Use take_use() { return std::exchange(use_, {}); }

 private:
  [[nodiscard]] Status bring(step::BlockWindow::Place place);
  [[nodiscard]] Status bring_expected();

  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<arena::HostStorage>> storage_;  // one a block
  std::unique_ptr<arena::HostStorage> table_;
  std::unique_ptr<arena::TransferLane> lane_;
  step::BlockWindow window_;
  std::vector<arena::TransferLane::Mark> arrival_;        // of each slot's block
  std::deque<arena::TransferLane::Mark> not_waited_for_;  // in order
  Status failed_;
  Use use_;
};

}  // namespace neap::bridge
