#include "train/generation_weights.h"

#include <utility>

#include "spec/layout.h"

namespace neap::train {

GenerationWeights::GenerationWeights(const spec::JobModel& model, std::int64_t rank, Units base,
                                     Units adapters)
    : rank_(rank), base_(std::move(base)), adapters_(std::move(adapters)) {
  if (!model.divides_otherwise_to_generate()) return;
  const spec::Architecture& part = model.generating();
  const auto cut = [&](auto layout) {
    return model::UnitCuts(model.whole, part.tensor.ranks, layout(model.whole), layout(part));
  };
  cuts_ = cut([&](const spec::Architecture& a) { return spec::flat_layout(a, model.head); });
  adapter_cuts_ = cut(
      [&](const spec::Architecture& a) { return spec::lora_layout(a, model.head, model.lora); });
}

void GenerationWeights::gather() {
  gather(base_, cuts_);
  if (adapters_.from != nullptr) gather(adapters_, adapter_cuts_);
}

void GenerationWeights::gather(const Units& units, const std::optional<model::UnitCuts>& cuts) {
  if (!cuts) return units.from->gather(units.to);
  units.from->gather_each([&](std::size_t unit, const at::Tensor& whole) {
    cuts->take(unit, rank_, whole, units.to[unit]);
  });
}

void WholeUnits::gather(const std::vector<at::Tensor>& whole) {
  for (std::size_t u = 0; u < units_.size(); ++u) at::Tensor(whole[u]).copy_(units_[u]);
}

void WholeUnits::gather_each(const TakeUnit& take) {
  for (std::size_t u = 0; u < units_.size(); ++u) take(u, units_[u]);
}

}  // namespace neap::train
