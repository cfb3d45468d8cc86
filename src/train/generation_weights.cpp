#include "train/generation_weights.h"

#include <utility>

#include "spec/layout.h"

namespace neap::train {

GenerationWeights::GenerationWeights(SlicedWeights& weights,
                                     const std::vector<at::Tensor>& adapters,
                                     const spec::JobModel& model, std::int64_t rank, Memory memory)
    : weights_(weights), whole_adapters_(adapters), rank_(rank), memory_(std::move(memory)) {
  if (!model.generation_part) return;
  const spec::Architecture& part = *model.generation_part;
  const auto cut = [&](auto layout) {
    return model::UnitCuts(model.whole, part.tensor.ranks, layout(model.whole), layout(part));
  };
  cuts_ = cut([&](const spec::Architecture& a) { return spec::flat_layout(a, model.head); });
  if (model.lora.rank > 0)
    adapter_cuts_ = cut(
        [&](const spec::Architecture& a) { return spec::lora_layout(a, model.head, model.lora); });
}

void GenerationWeights::gather() {
  if (!cuts_) return weights_.gather(memory_.base);
  weights_.gather_each([this](std::size_t unit, const at::Tensor& whole) {
    cuts_->take(unit, rank_, whole, memory_.base[unit]);
  });
  if (!adapter_cuts_) return;
  for (std::size_t u = 0; u < memory_.adapters.size(); ++u)
    adapter_cuts_->take(u, rank_, whole_adapters_[u], memory_.adapters[u]);
}

}  // namespace neap::train
