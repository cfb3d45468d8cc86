// What a model generates with whose weights rest elsewhere in training: on the host, in slices, stages or other parts.
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

UnitSource& ModelWorker::own_units(const std::vector<at::Tensor>& units) {
  sources_.push_back(std::make_unique<ResidentUnits>(units));
  return *sources_.back();
}

UnitSource& ModelWorker::source_of_base() {
  if (!has_stages()) return sliced_ ? static_cast<UnitSource&>(*sliced_) : own_units(weights_);
  return units_from_stages(spec::flat_layout(spec::undivided(spec_.shape), spec_.head), numbers_,
                           [this](std::size_t unit, const at::Tensor& to) {
                             if (sliced_) return sliced_->gather_unit(unit, to);
                             at::Tensor(to).copy_(weights_[unit]);
                           });
}

UnitSource& ModelWorker::source_of_adapters() {
  if (!has_stages()) return own_units(adapters_);
  return units_from_stages(
      spec::lora_layout(spec::undivided(spec_.shape), spec_.head, spec_.lora), adapter_numbers_,
      [this](std::size_t unit, const at::Tensor& to) { at::Tensor(to).copy_(adapters_[unit]); });
}

std::unique_ptr<PartExchange> ModelWorker::parts_to_generate(const LayoutOf& layout) {
  if (!spec_.divides_otherwise_to_generate()) return nullptr;
  const spec::TensorShard& there = spec_.generating().tensor;
  at::Tensor buffer;
  if (shard().ranks > 1)
    buffer = runtime_.region(tag(TagKind::kBlocks), spec::kTransferPart, runtime_.compute_dtype());
  const std::int64_t first = (there.rank - shard().rank % there.ranks + there.ranks) % there.ranks;
  return std::make_unique<PartExchange>(
      groups_.tensor(), spec_.whole,
      PartExchange::Layouts{layout(spec_.whole), layout(spec::undivided(spec_.shape)),
                            layout(spec_.generating())},
      spec::wanted_parts(shard().ranks, first, there.ranks), std::move(buffer));
}

void ModelWorker::make_generator(const std::optional<ops::Lora>& lora) {
  const spec::Architecture& part = spec_.generating();
  const at::ScalarType dtype = runtime_.compute_dtype();
  std::vector<at::Tensor> base;
  std::optional<ops::Lora> adapted = lora;
  if (spec_.streamed) {
    base = gathered_weights();
  } else {
    const auto of_base = [this](const spec::Architecture& a) {
      return spec::flat_layout(a, spec_.head);
    };
    const auto of_adapters = [this](const spec::Architecture& a) {
      return spec::lora_layout(a, spec_.head, spec_.lora);
    };
    base = regions(TagKind::kBlocks, of_base(part), dtype);
    std::vector<GenerationWeights::Units> units;
    units.push_back({&source_of_base(), base, parts_to_generate(of_base)});
    if (adapted && spec_.generation_part) {
      std::vector<at::Tensor> adapters;
      for (const spec::FlatUnit& unit : of_adapters(part))
        adapters.push_back(
            runtime_.region(tag(TagKind::kBlocks), spec::adapter_part(unit.name), dtype)
                .narrow(0, 0, unit.elements));
      units.push_back({&source_of_adapters(), adapters, parts_to_generate(of_adapters)});
      adapted->adapters = {std::move(adapters), {}};
    }
    generating_ = std::make_unique<GenerationWeights>(std::move(units));
  }
  generator_ = std::make_unique<ops::Transformer>(
      part, spec_.head, ops::FlatTensors{std::move(base), {}}, std::move(adapted), std::nullopt,
      runtime_.context().attention(), ops::Peers{&groups_.generating(), &groups_.context()});
}

void ModelWorker::gather_generator() {
  if (generating_) generating_->gather();
}

}  // namespace neap::train
