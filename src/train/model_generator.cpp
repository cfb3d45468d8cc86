// Rollouts of a model whose training weights are offloaded, or in ZeRO shards, stages or another
// tensor-parallel size.
#include <algorithm>
#include <utility>

#include "spec/model/layout.h"
#include "spec/model/pipeline.h"
#include "train/model_worker.h"
#include "train/stage_units.h"

namespace neap::train {

using spec::TagKind;

bridge::SlotPart ModelWorker::part_to_generate(const spec::FlatUnit& unit) const {
  return runtime_.part(tag(TagKind::kBlocks), spec_.divides_otherwise_to_generate()
                                                  ? spec::kWholeUnitPart
                                                  : std::string_view(unit.name));
}

void ModelWorker::take_to_generate(std::size_t unit, const at::Tensor& to) {
  const spec::FlatUnit& own = layout_[unit];
  if (sliced_) return sliced_->gather_unit(unit, to, part_to_generate(own));
  if (hosted(own) == nullptr) {
    at::Tensor(to).copy_(weights_[unit]);
    return;
  }
  throw_if_error(
      runtime_.streamed_blocks(tag(TagKind::kBuffers))
          .bring_to_generate(static_cast<std::size_t>(spec_.shape.place_of_block(own.block)),
                             part_to_generate(own)));
}

UnitSource& ModelWorker::units_from_stages(std::vector<spec::FlatUnit> layout,
                                           const std::vector<std::size_t>& numbers,
                                           const TakeOwnUnit& take) {
  std::vector<StageUnits::Unit> units;
  for (std::size_t u = 0; u < layout.size(); ++u) {
    StageUnits::Unit& unit = units.emplace_back();
    unit.stage = has_stages() ? static_cast<int>(stage_of(layout[u])) : 0;
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
  if (has_stages() || spec_.streamed)
    return units_from_stages(
        spec::flat_layout(spec::undivided(spec_.shape), spec_.head), numbers_,
        [this](std::size_t unit, const at::Tensor& to) { take_to_generate(unit, to); });
  if (!sliced_) return own_units(weights_);
  if (spec_.slice_on_host && !spec_.divides_otherwise_to_generate()) {
    std::vector<bridge::SlotPart> parts;
    for (const spec::FlatUnit& unit : layout_) parts.push_back(part_to_generate(unit));
    sliced_->set_generating(std::move(parts));
  }
  return *sliced_;
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

std::vector<at::Tensor> ModelWorker::own_to_generate(std::vector<GenerationWeights::Units>& units) {
  std::vector<at::Tensor> out = weights_, places;
  std::vector<spec::FlatUnit> blocks;
  std::vector<std::size_t> numbers, in_layout;
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    if (layout_[i].block < 0) continue;
    out[i] = region(TagKind::kBlocks, layout_[i], runtime_.compute_dtype());
    places.push_back(out[i]);
    numbers.push_back(blocks.size());
    blocks.push_back(layout_[i]);
    in_layout.push_back(i);
  }
  units.push_back({&units_from_stages(std::move(blocks), numbers,
                                      [this, in_layout](std::size_t block, const at::Tensor& to) {
                                        take_to_generate(in_layout[block], to);
                                      }),
                   std::move(places), nullptr});
  return out;
}

std::vector<at::Tensor> ModelWorker::part_of_others(std::vector<GenerationWeights::Units>& units,
                                                    std::optional<ops::Lora>& adapted) {
  const spec::Architecture& part = spec_.generating();
  const at::ScalarType dtype = runtime_.compute_dtype();
  const auto of_base = [this](const spec::Architecture& a) {
    return spec::flat_layout(a, spec_.head);
  };
  std::vector<at::Tensor> base = regions(TagKind::kBlocks, of_base(part), dtype);
  units.push_back({&source_of_base(), base, parts_to_generate(of_base)});
  if (!adapted || !spec_.generation_part) return base;
  const auto of_adapters = [this](const spec::Architecture& a) {
    return spec::lora_layout(a, spec_.head, spec_.lora);
  };
  std::vector<at::Tensor> adapters;
  for (const spec::FlatUnit& unit : of_adapters(part))
    adapters.push_back(runtime_.region(tag(TagKind::kBlocks), spec::adapter_part(unit.name), dtype)
                           .narrow(0, 0, unit.elements));
  units.push_back({&source_of_adapters(), adapters, parts_to_generate(of_adapters)});
  adapted->adapters = {std::move(adapters), {}};
  return base;
}

void ModelWorker::make_generator(const std::optional<ops::Lora>& lora) {
  std::optional<ops::Lora> adapted = lora;
  std::vector<GenerationWeights::Units> units;
  std::vector<at::Tensor> base = spec_.streamed && !spec_.generation_part
                                     ? own_to_generate(units)
                                     : part_of_others(units, adapted);
  generating_ = std::make_unique<GenerationWeights>(std::move(units));
  generator_ = std::make_unique<ops::Transformer>(
      spec_.generating(), spec_.head, ops::FlatTensors{std::move(base), {}}, std::move(adapted),
      std::nullopt, runtime_.context().kernels(),
      ops::Peers{&groups_.generating(), &groups_.context()});
}

void ModelWorker::gather_generator() {
  if (generating_) generating_->gather();
}

}  // namespace neap::train
