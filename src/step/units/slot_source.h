// Blocks and tables of a model that are in prefetch buffers ("slots") while passes use them, for a
// run and for a plan.
//
// Threads   one at a time: that of the passes.
// Failure   what the slots throw.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step/units/units.h"

namespace neap::step {

template <class T>
class SlotSource : public BlockSource<T> {
 public:
  void begin_mini_batch(std::int64_t passes_back) override {
    for (BlockSlots* const slots : {slots_, input_slots_})
      if (slots != nullptr) slots->begin_mini_batch(passes_back);
  }
  void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override {
    for (BlockSlots* const slots : {slots_, input_slots_})
      if (slots != nullptr) slots->expect(sweep, passes, chunk);
  }
  [[nodiscard]] std::int64_t further_passes(std::int64_t own) override {
    return slots_ == nullptr ? 0 : slots_->further_passes(own);
  }
  void begin_group(std::int64_t rows) override {
    if (row_bytes_ != 0)
      (input_slots_ == nullptr ? slots_ : input_slots_)->set_input_bytes(rows * row_bytes_);
  }
  [[nodiscard]] T inputs(std::int64_t first, std::int64_t count) override {
    return row_bytes_ == 0 ? T() : inputs_in(input_slot_, first, count);
  }
  [[nodiscard]] const Block<T>& use(std::size_t block, BlockUse how) override {
    if (slots_ != nullptr) place_ = slots_->use(block, how);
    input_slot_ = place_.slot;
    // Other passes have no buffers for inputs.
    uses_inputs_ = input_slots_ != nullptr && how != BlockUse::kRead && how != BlockUse::kAddLater;
    if (uses_inputs_) input_slot_ = input_slots_->use(block, how).slot;
    return block_in(place_.slot, block);
  }
  void release(std::size_t block) noexcept override {
    if (slots_ != nullptr) slots_->release(block);
    if (uses_inputs_) input_slots_->release(block);
  }
  [[nodiscard]] bool has_turn(Table table, BlockUse how) const override {
    return tables_.takes(table, how);
  }
  void use_table(Table table, BlockUse how) override { turn_ = slots_->use_table(table, how); }
  void release_table() noexcept override { slots_->release_table(); }
  [[nodiscard]] T new_gradients(UnitKey unit) override {
    return (unit < 0 ? turn_.zero : place_.zero) ? gradients_in(place_.slot, unit) : T();
  }
  [[nodiscard]] T complete_gradients(UnitKey unit) override {
    return (unit < 0 ? turn_.last : place_.last) ? gradients_in(place_.slot, unit) : T();
  }

 protected:
  /// `input_slots` are of inputs that are not in `slots`; either may be null, and both must outlive
  /// it. `row_bytes` are those of a row of inputs, 0: inputs are not offloaded.
  SlotSource(BlockSlots* slots, BlockSlots* input_slots, std::int64_t row_bytes)
      : slots_(slots),
        input_slots_(input_slots),
        row_bytes_(row_bytes),
        tables_(slots == nullptr ? TableUnits() : slots->tables()) {}
  [[nodiscard]] BlockSlots* slots() const { return slots_; }
  [[nodiscard]] const TableUnits& tables() const { return tables_; }

 private:
  [[nodiscard]] virtual const Block<T>& block_in(std::size_t slot, std::size_t block) const = 0;
  /// The gradients of a block in the slot, or of the table in use (elements,).
  [[nodiscard]] virtual T gradients_in(std::size_t slot, UnitKey unit) const = 0;
  /// Rows [first, first + count) of the inputs in the slot.
  [[nodiscard]] virtual T inputs_in(std::size_t slot, std::int64_t first,
                                    std::int64_t count) const = 0;

  BlockSlots *slots_, *input_slots_;
  std::int64_t row_bytes_;
  TableUnits tables_;
  BlockSlots::Place place_;     // of the block in use
  std::size_t input_slot_ = 0;  // of its inputs
  bool uses_inputs_ = false;    // they are in a slot of input_slots_
  TableTurns::Turn turn_;       // the last turn
};

}  // namespace neap::step
