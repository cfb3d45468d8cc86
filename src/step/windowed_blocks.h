// Slots for the blocks and tables of a model that rest elsewhere, whichever way they come from there and leave.
//
// Threads   one at a time.
// Failure   Error; of release() and of what is under way at the next use().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "step/units.h"

namespace neap::step {

class WindowedBlocks : public BlockSlots {
 public:
  void begin_mini_batch(std::int64_t passes_back) override;
  void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override;
  void set_input_bytes(std::int64_t) override {}
  [[nodiscard]] Place use(std::size_t block, BlockUse how) override;
  void release(std::size_t block) noexcept override;
  [[nodiscard]] TableUnits tables() const override { return tables_; }
  [[nodiscard]] TableTurns::Turn use_table(Table table, BlockUse how) override;
  void release_table() noexcept override;

 protected:
  WindowedBlocks(std::size_t blocks, std::size_t slots, WithBlocks with, const TableUnits& tables);
  /// Nothing is in the slots, and nothing is expected.
  void forget();
  [[nodiscard]] Status take_failure();
  /// As BlockWindow's.
  [[nodiscard]] std::optional<std::size_t> brought_then() const { return window_.brought_then(); }

  /// What comes and leaves from now on does so after the work that the device was given so far.
  [[nodiscard]] virtual Status begin_after_work() = 0;
  /// Begins to bring what a slot lacks.
  [[nodiscard]] virtual Status bring(BlockWindow::Place place) = 0;
  /// What the device is given from now on begins when everything has come to the slot.
  [[nodiscard]] virtual Status wait_for_slot(std::size_t slot) = 0;
  /// Begins to take away what leaves a block's slot.
  [[nodiscard]] virtual Status leave(std::size_t block, BlockWindow::Leaving what) = 0;
  /// The work so far reads and writes the slots' memory, and gradients may still leave it. What the device is given
  /// from now on begins when the table has come there.
  [[nodiscard]] virtual Status begin_turn(Table table, const TableTurns::Turn& turn) = 0;
  [[nodiscard]] virtual Status end_turn(const TableTurns::Turn& turn) = 0;

 private:
  [[nodiscard]] Status bring_expected();
  [[nodiscard]] Status after_release(std::size_t block, BlockWindow::Leaving leaving);
  [[nodiscard]] Status after_turn();

  TableUnits tables_;
  BlockWindow window_;
  TableTurns turns_;
  TableTurns::Turn turn_;  // the last one
  Status failed_;
};

}  // namespace neap::step
