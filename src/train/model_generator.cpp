// What a model generates with whose weights rest elsewhere in training: on the host, in slices or in stages.
#include <algorithm>
#include <utility>

#include "spec/layout.h"
#include "spec/pipeline.h"
#include "train/model_worker.h"
#include "train/stage_units.h"

namespace neap::train {

using spec::TagKind;

std::vector<at::Tensor> ModelWorker::gathered_weights() {
  std::vector<at::Tensor> out = weights_;
  for (std::size_t i = 0; i < layout_.size(); ++i)
    if (layout_[i].block >= 0)
      out[i] = region(TagKind::kBlocks, layout_[i], runtime_.compute_dtype());
  return out;
}

UnitSource& ModelWorker::units_from_stages(std::vector<spec::FlatUnit> layout,
                                           const std::vector<std::size_t>& numbers,
                                           const TakeOwnUnit& take) {
  std::vector<StageUnits::Unit> units;
  for (std::size_t u = 0; u < layout.size(); ++u) {
    StageUnits::Unit& unit = units.emplace_back();
    unit.stage = static_cast<int>(stage_of(layout[u]));
    if (const auto own = std::find(numbers.begin(), numbers.end(), u); own != numbers.end())
      unit.take = [take, u = static_cast<std::size_t>(own - numbers.begin())](
                      const at::Tensor& to) { take(u, to); };
  }
  at::Tensor place;
  if (spec_.divides_otherwise_to_generate())
    place = runtime_.region(tag(TagKind::kBlocks), spec::kWholeUnitPart, runtime_.compute_dtype());
  sources_.push_back(std::make_unique<StageUnits>(stages(), std::move(layout), std::move(units),
                                                  std::move(place)));
  return *sources_.back();
}

UnitSource& ModelWorker::source_of_base() {
  if (sliced_ && !has_stages()) return *sliced_;
  return units_from_stages(spec::flat_layout(spec::undivided(spec_.shape), spec_.head), numbers_,
                           [this](std::size_t unit, const at::Tensor& to) {
                             if (sliced_) return sliced_->gather_unit(unit, to);
                             at::Tensor(to).copy_(weights_[unit]);
                           });
}

UnitSource& ModelWorker::source_of_adapters() {
  if (has_stages())
    return units_from_stages(
        spec::lora_layout(spec::undivided(spec_.shape), spec_.head, spec_.lora), adapter_numbers_,
        [this](std::size_t unit, const at::Tensor& to) { at::Tensor(to).copy_(adapters_[unit]); });
  sources_.push_back(std::make_unique<WholeUnits>(adapters_));
  return *sources_.back();
}

void ModelWorker::make_generator(const std::optional<model::Lora>& lora) {
  const spec::Architecture& part = spec_.generating();
  const at::ScalarType dtype = runtime_.compute_dtype();
  std::vector<at::Tensor> base;
  std::optional<model::Lora> adapted = lora;
  if (spec_.streamed) {
    base = gathered_weights();
  } else {
    base = regions(TagKind::kBlocks, spec::flat_layout(part, spec_.head), dtype);
    GenerationWeights::Units adapters;
    if (adapted && spec_.generation_part) {
      for (const spec::FlatUnit& unit : spec::lora_layout(part, spec_.head, lora->shape))
        adapters.to.push_back(
            runtime_.region(tag(TagKind::kBlocks), spec::adapter_part(unit.name), dtype)
                .narrow(0, 0, unit.elements));
      adapters.from = &source_of_adapters();
      adapted->adapters = {adapters.to, {}};
    }
    generating_ = std::make_unique<GenerationWeights>(
        spec_, groups_.generating().rank(), GenerationWeights::Units{&source_of_base(), base},
        std::move(adapters));
  }
  generator_ = std::make_unique<model::Transformer>(
      part, spec_.head, model::FlatTensors{std::move(base), {}}, std::move(adapted), std::nullopt,
      runtime_.context().attention(), model::Peers{&groups_.generating(), &groups_.context()});
}

void ModelWorker::gather_generator() {
  if (generating_) generating_->gather();
}

}  // namespace neap::train
