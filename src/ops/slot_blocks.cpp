#include "ops/slot_blocks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "bridge/runtime.h"
#include "ops/transformer.h"
#include "step/operations/bind.h"

namespace neap::ops {

using at::Tensor;

const spec::FlatUnit& table_unit(const step::Weights<Tensor>& weights,
                                 const std::vector<spec::FlatUnit>& units, step::Table table) {
  const bool embedding =
      table == step::Table::kEmbedding || weights.architecture.tie_word_embeddings;
  const spec::Module module = embedding ? spec::Module::kTokenEmbedding : spec::Module::kLmHead;
  return *std::find_if(units.begin(), units.end(),
                       [&](const spec::FlatUnit& unit) { return unit.find(module) != nullptr; });
}

namespace {

// Every block, bound to every slot's memory.
class SlotBlocks final : public step::BlockSource<Tensor> {
 public:
  /// `weights` is bound except for what is offloaded or sharded.
  SlotBlocks(const step::Weights<Tensor>& weights, const StreamedBase& streamed)
      : slots_(streamed.slots),
        input_slots_(streamed.input_slots),
        inputs_(streamed.inputs),
        width_(weights.architecture.hidden_size),
        tables_(slots_ == nullptr ? step::TableUnits() : slots_->tables()) {
    if (slots_ == nullptr) {
      blocks_.push_back(weights.blocks);
      gradients_.emplace_back();
    }
    const std::vector<spec::FlatUnit> units = spec::flat_layout(weights.architecture, weights.head);
    for (const step::Table table : {step::Table::kEmbedding, step::Table::kHead})
      if (tables_.of(table) && streamed.table_gradients.defined())
        table_gradients_[place_of(table)] =
            streamed.table_gradients.narrow(0, 0, table_unit(weights, units, table).elements);
    for (std::size_t slot = 0; slot < streamed.memory.size(); ++slot) {
      const Tensor gradients = streamed.gradients.empty() ? Tensor() : streamed.gradients[slot];
      blocks_.push_back(bind(weights, units, streamed.memory[slot], gradients));
      gradients_.push_back(gradients);
    }
    for (const spec::FlatUnit& unit : units)
      if (unit.block >= 0) elements_.push_back(unit.elements);
  }
  void begin_mini_batch(std::int64_t passes_back) override {
    for (step::BlockSlots* const slots : {slots_, input_slots_})
      if (slots != nullptr) slots->begin_mini_batch(passes_back);
  }
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override {
    for (step::BlockSlots* const slots : {slots_, input_slots_})
      if (slots != nullptr) slots->expect(sweep, passes, chunk);
  }
  [[nodiscard]] std::int64_t further_passes(std::int64_t own) override {
    return slots_ == nullptr ? 0 : slots_->further_passes(own);
  }
  void begin_group(std::int64_t rows) override {
    if (inputs_.empty()) return;
    const auto size = static_cast<std::int64_t>(inputs_.front().element_size());
    (input_slots_ == nullptr ? slots_ : input_slots_)->set_input_bytes(rows * width_ * size);
  }
  [[nodiscard]] Tensor inputs(std::int64_t first, std::int64_t count) override {
    if (inputs_.empty()) return {};
    return inputs_[input_slot_].narrow(0, first * width_, count * width_).view({count, width_});
  }
  [[nodiscard]] const step::Block<Tensor>& use(std::size_t block, step::BlockUse how) override {
    if (slots_ != nullptr) place_ = slots_->use(block, how);
    input_slot_ = place_.slot;
    // Other passes have no buffers for inputs.
    uses_inputs_ =
        input_slots_ != nullptr && how != step::BlockUse::kRead && how != step::BlockUse::kAddLater;
    if (uses_inputs_) input_slot_ = input_slots_->use(block, how).slot;
    return blocks_[place_.slot][block];
  }
  void release(std::size_t block) noexcept override {
    if (slots_ != nullptr) slots_->release(block);
    if (uses_inputs_) input_slots_->release(block);
  }
  [[nodiscard]] bool has_gradients() const override { return gradients_.front().defined(); }
  [[nodiscard]] bool has_turn(step::Table table, step::BlockUse how) const override {
    return tables_.takes(table, how);
  }
  void use_table(step::Table table, step::BlockUse how) override {
    turn_ = slots_->use_table(table, how);
  }
  void release_table() noexcept override { slots_->release_table(); }
  [[nodiscard]] Tensor rows_from_files(const Tensor& table, const Tensor& indices) override {
    if (slots_ == nullptr || !slots_->reads_rows()) return {};
    const at::Device device = indices.device();
    const Tensor rows = [&] {
      std::optional<bridge::HostScope> host;
      if (device.is_cuda()) host.emplace();
      const Tensor wanted = indices.to(at::kCPU).contiguous();
      Tensor out = at::empty({wanted.numel(), table.size(1)},
                             at::dtype(table.scalar_type()).device(at::kCPU));
      const Bytes width(static_cast<std::uint64_t>(table.size(1) * table.element_size()));
      slots_->read_rows(
          {wanted.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(wanted.numel())}, width,
          static_cast<std::byte*>(out.data_ptr()));
      return out;
    }();
    return rows.to(device);
  }
  [[nodiscard]] Tensor new_gradients(step::UnitKey unit) override {
    return (unit < 0 ? turn_.zero : place_.zero) ? gradients_of(unit) : Tensor();
  }
  [[nodiscard]] Tensor complete_gradients(step::UnitKey unit) override {
    return (unit < 0 ? turn_.last : place_.last) ? gradients_of(unit) : Tensor();
  }

 private:
  // Gradients without a slot stay in place.
  static std::vector<step::Block<Tensor>> bind(const step::Weights<Tensor>& weights,
                                               const std::vector<spec::FlatUnit>& units,
                                               const Tensor& memory, const Tensor& gradients) {
    step::Weights<Tensor> bound = weights;
    for (const spec::FlatUnit& unit : units) {
      if (unit.block < 0) continue;
      check_flat(memory, unit, "slots");
      if (gradients.defined()) check_flat(gradients, unit, "slots of gradients");
      for (const spec::Parameter& p : unit.parameters) {
        const step::Slot<Tensor> place = step::find_slot(bound, unit.block, p.module, p.part);
        *place.weight = parameter_view(memory, p);
        if (gradients.defined()) *place.gradient = parameter_view(gradients, p);
      }
      step::bind_neighbours(
          bound, unit, [&](const spec::Neighbours& all) { return neighbours_view(memory, all); });
    }
    return std::move(bound.blocks);
  }
  [[nodiscard]] Tensor gradients_of(step::UnitKey unit) const {
    for (const step::Table table : {step::Table::kEmbedding, step::Table::kHead})
      if (unit == step::key_of(table)) return table_gradients_[place_of(table)];
    return gradients_[place_.slot].narrow(0, 0, elements_[static_cast<std::size_t>(unit)]);
  }
  static std::size_t place_of(step::Table table) { return static_cast<std::size_t>(table); }

  step::BlockSlots *slots_, *input_slots_;                // either may be null
  std::vector<std::vector<step::Block<Tensor>>> blocks_;  // per slot
  std::vector<Tensor> gradients_;                         // per slot; undefined: frozen
  std::vector<Tensor> inputs_;                            // per slot, or empty
  std::int64_t width_;                                    // C
  std::vector<std::int64_t> elements_;                    // per block
  step::BlockSlots::Place place_;                         // of the block in use
  std::size_t input_slot_ = 0;                            // of its inputs
  bool uses_inputs_ = false;                              // they are in a slot of input_slots_
  step::TableUnits tables_;
  std::array<Tensor, 2> table_gradients_;  // per table
  step::TableTurns::Turn turn_;            // the last turn
};

}  // namespace

std::unique_ptr<step::BlockSource<Tensor>> make_slot_blocks(const step::Weights<Tensor>& weights,
                                                            const StreamedBase& streamed) {
  return std::make_unique<SlotBlocks>(weights, streamed);
}

}  // namespace neap::ops
