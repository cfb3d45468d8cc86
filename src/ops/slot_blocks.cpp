#include "ops/slot_blocks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "bridge/runtime.h"
#include "ops/transformer.h"
#include "step/operations/bind.h"
#include "step/units/slot_source.h"

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
class SlotBlocks final : public step::SlotSource<Tensor> {
 public:
  /// `weights` is bound except for what is offloaded or sharded.
  SlotBlocks(const step::Weights<Tensor>& weights, const StreamedBase& streamed)
      : SlotSource(streamed.slots, streamed.input_slots,
                   streamed.inputs.empty()
                       ? 0
                       : weights.architecture.hidden_size *
                             static_cast<std::int64_t>(streamed.inputs.front().element_size())),
        inputs_(streamed.inputs),
        width_(weights.architecture.hidden_size) {
    if (slots() == nullptr) {
      blocks_.push_back(weights.blocks);
      gradients_.emplace_back();
    }
    const std::vector<spec::FlatUnit> units = spec::flat_layout(weights.architecture, weights.head);
    for (const step::Table table : {step::Table::kEmbedding, step::Table::kHead})
      if (tables().of(table) && streamed.table_gradients.defined())
        table_gradients_[step::index_of(table)] =
            streamed.table_gradients.narrow(0, 0, table_unit(weights, units, table).elements);
    for (std::size_t slot = 0; slot < streamed.memory.size(); ++slot) {
      const Tensor gradients = streamed.gradients.empty() ? Tensor() : streamed.gradients[slot];
      blocks_.push_back(bind(weights, units, streamed.memory[slot], gradients));
      gradients_.push_back(gradients);
    }
    for (const spec::FlatUnit& unit : units)
      if (unit.block >= 0) elements_.push_back(unit.elements);
  }
  [[nodiscard]] bool has_gradients() const override { return gradients_.front().defined(); }
  [[nodiscard]] Tensor rows_from_files(const Tensor& table, const Tensor& indices) override {
    if (slots() == nullptr || !slots()->reads_rows()) return {};
    const at::Device device = indices.device();
    const Tensor rows = [&] {
      std::optional<bridge::HostScope> host;
      if (device.is_cuda()) host.emplace();
      const Tensor wanted = indices.to(at::kCPU).contiguous();
      Tensor out = at::empty({wanted.numel(), table.size(1)},
                             at::dtype(table.scalar_type()).device(at::kCPU));
      const Bytes width(static_cast<std::uint64_t>(table.size(1) * table.element_size()));
      slots()->read_rows(
          {wanted.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(wanted.numel())}, width,
          static_cast<std::byte*>(out.data_ptr()));
      return out;
    }();
    return rows.to(device);
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
  [[nodiscard]] const step::Block<Tensor>& block_in(std::size_t slot,
                                                    std::size_t block) const override {
    return blocks_[slot][block];
  }
  [[nodiscard]] Tensor gradients_in(std::size_t slot, step::UnitKey unit) const override {
    for (const step::Table table : {step::Table::kEmbedding, step::Table::kHead})
      if (unit == step::key_of(table)) return table_gradients_[step::index_of(table)];
    return gradients_[slot].narrow(0, 0, elements_[static_cast<std::size_t>(unit)]);
  }
  [[nodiscard]] Tensor inputs_in(std::size_t slot, std::int64_t first,
                                 std::int64_t count) const override {
    return inputs_[slot].narrow(0, first * width_, count * width_).view({count, width_});
  }

  std::vector<std::vector<step::Block<Tensor>>> blocks_;  // per slot
  std::vector<Tensor> gradients_;                         // per slot; undefined: frozen
  std::vector<Tensor> inputs_;                            // per slot, or empty
  std::int64_t width_;                                    // C
  std::vector<std::int64_t> elements_;                    // per block
  std::array<Tensor, 2> table_gradients_;                 // per table
};

}  // namespace

std::unique_ptr<step::BlockSource<Tensor>> make_slot_blocks(const step::Weights<Tensor>& weights,
                                                            const StreamedBase& streamed) {
  return std::make_unique<SlotBlocks>(weights, streamed);
}

}  // namespace neap::ops
