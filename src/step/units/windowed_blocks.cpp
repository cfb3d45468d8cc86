#include "step/units/windowed_blocks.h"

#include <utility>

namespace neap::step {

WindowedBlocks::WindowedBlocks(std::size_t blocks, std::size_t slots, WithBlocks with,
                               const TableUnits& tables)
    : tables_(tables),
      window_(blocks, slots, with, tables.breaks()),
      turns_(tables, with.gradients) {}

void WindowedBlocks::forget() {
  window_.forget();
}

Status WindowedBlocks::take_failure() {
  return std::exchange(failed_, {});
}

void WindowedBlocks::begin_mini_batch(std::int64_t passes_back) {
  window_.begin_mini_batch(passes_back);
  turns_.begin_mini_batch(passes_back);
}

void WindowedBlocks::expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
  announce(sweep, passes, chunk);
  turns_.expect(sweep, passes);
  throw_if_error(bring_expected());
}

BlockSlots::Place WindowedBlocks::use(std::size_t block, BlockUse how) {
  throw_if_error(failed_);
  const BlockWindow::Use use = window_.use(block, how);
  if (use.missing.any()) throw_if_error(bring(use.missing));
  throw_if_error(wait_for_slot(use.missing.slot));
  return {use.missing.slot, use.zero, use.last};
}

void WindowedBlocks::release(std::size_t block) noexcept {
  Status status = after_release(block, window_.release(block));
  if (failed_.ok()) failed_ = std::move(status);
}

// The device's work so far may write the gradients that are stored, and read the slot that the next
// block is loaded into.
Status WindowedBlocks::after_release(std::size_t block, BlockWindow::Leaving leaving) {
  NEAP_TRY(begin_after_work());
  if (leaving.any()) NEAP_TRY(leave(block, leaving));
  return bring_expected();
}

TableTurns::Turn WindowedBlocks::use_table(Table table, BlockUse how) {
  throw_if_error(failed_);
  turn_ = turns_.take(table, how);
  window_.clear();
  throw_if_error(begin_after_work());
  throw_if_error(begin_turn(table, turn_));
  return turn_;
}

void WindowedBlocks::release_table() noexcept {
  Status status = after_turn();
  if (failed_.ok()) failed_ = std::move(status);
}

Status WindowedBlocks::after_turn() {
  NEAP_TRY(begin_after_work());
  NEAP_TRY(end_turn(turn_));
  return turn_.blocks_follow ? bring_expected() : Status();
}

Status WindowedBlocks::bring_expected() {
  while (const auto place = window_.next_to_bring()) NEAP_TRY(bring(*place));
  return {};
}

}  // namespace neap::step
