// The common part of prefetch buffers for blocks and tables, whether they are offloaded or sharded.
//
// Threads   one at a time.
// Failure   Error; failures of release() and of running copies are thrown by the next use().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "step/units/units.h"

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
  /// Empties the slots, and drops the announced passes.
  void forget();
  /// Announces passes to the slots, and loads nothing yet.
  void announce(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
    window_.expect(sweep, passes, chunk);
  }
  [[nodiscard]] Status take_failure();
  /// As BlockWindow's.
  [[nodiscard]] std::optional<std::size_t> brought_then() const { return window_.brought_then(); }

  /// Later loads and stores start after the device's work so far.
  [[nodiscard]] virtual Status begin_after_work() = 0;
  /// Starts to load a slot's missing data.
  [[nodiscard]] virtual Status bring(BlockWindow::Place place) = 0;
  /// Later work of the device waits for the slot's loads.
  [[nodiscard]] virtual Status wait_for_slot(std::size_t slot) = 0;
  /// Starts to store the data that leave a block's slot.
  [[nodiscard]] virtual Status leave(std::size_t block, BlockWindow::Leaving what) = 0;
  /// Starts a turn. Earlier work may use the slots' memory, and gradients may still be copied from
  /// it. Later work of the device waits until the table is loaded.
  [[nodiscard]] virtual Status begin_turn(Table table, const TableTurns::Turn& turn) = 0;
  [[nodiscard]] virtual Status end_turn(const TableTurns::Turn& turn) = 0;

 private:
  [[nodiscard]] Status bring_expected();
  [[nodiscard]] Status after_release(std::size_t block, BlockWindow::Leaving leaving);
  [[nodiscard]] Status after_turn();

  TableUnits tables_;
  BlockWindow window_;
  TableTurns turns_;
  TableTurns::Turn turn_;  // the last turn
  Status failed_;
};

}  // namespace neap::step
