#include "train/model_generator.h"

#include <algorithm>
#include <utility>

#include "bridge/no_autograd.h"
#include "spec/model/pipeline.h"

namespace neap::train {

ModelGenerator::ModelGenerator(const RankModel& model, UnitStore& base, UnitStore* adapters,
                               std::optional<ops::Lora> lora)
    : rank_(model) {
  const plan::MemoryPlan& plan = model.runtime.plan();
  const plan::TagPlan& tag = plan.tags[*plan.index_of(model.tag(spec::TagKind::kBlocks))];
  std::vector<at::Tensor> weights = add(base, tag.own_blocks);
  if (adapters != nullptr && model.spec.generation_part)
    lora->adapters = {add(*adapters, false), {}};
  // A job that stores them has a copy of all weights, so that every tensor is defined.
  if (tag.hosted.stored_buffer > Bytes()) {
    std::vector<at::Tensor> stored;
    for (const Gathered& each : gathered_)
      stored.insert(stored.end(), each.to.begin(), each.to.end());
    file_.emplace(model.runtime.arena(), to_string(tag.id), stored, tag.hosted.stored_buffer);
  }
  model_.emplace(model.spec.generating(), model.spec.head, ops::FlatTensors{std::move(weights), {}},
                 std::move(lora), std::nullopt, model.runtime.context().kernels(),
                 ops::Peers{&model.groups.generating(), &model.groups.context()});
}

std::vector<at::Tensor> ModelGenerator::add(UnitStore& units, bool only_blocks) {
  const std::vector<spec::FlatUnit> layout = units.part().layout_of(rank_.spec.generating());
  std::vector<at::Tensor> out, to(layout.size());
  for (std::size_t u = 0; u < layout.size(); ++u) {
    const spec::FlatUnit& unit = layout[u];
    if (!only_blocks || unit.block >= 0)
      to[u] = region(units.part().adapters() ? spec::adapter_part(unit.name) : unit.name)
                  .narrow(0, 0, unit.elements);
    out.push_back(to[u].defined() ? to[u] : units.values()[u]);
  }
  gathered_.push_back({&units, std::move(to), exchange_of(units.part())});
  return out;
}

std::unique_ptr<PartExchange> ModelGenerator::exchange_of(const ModelPart& part) const {
  if (!rank_.spec.divides_otherwise_to_generate()) return nullptr;
  const spec::TensorShard& there = rank_.spec.generating().tensor;
  at::Tensor buffer;
  if (part.shard().ranks > 1) buffer = region(spec::kTransferPart);
  const std::int64_t first =
      (there.rank - part.shard().rank % there.ranks + there.ranks) % there.ranks;
  return std::make_unique<PartExchange>(
      rank_.groups.tensor(), rank_.spec.whole,
      PartExchange::Layouts{part.whole(), part.layout_of(spec::undivided(rank_.spec.shape)),
                            part.layout_of(rank_.spec.generating())},
      spec::wanted_parts(part.shard().ranks, first, there.ranks), std::move(buffer));
}

void ModelGenerator::gather() {
  for (const Gathered& each : gathered_) {
    if (each.units->part().has_stages()) {
      gather_stages(each);
    } else if (!each.parts) {
      each.units->gather(each.to);
    } else {
      each.units->gather_each([&](std::size_t unit, const at::Tensor& trained) {
        each.parts->run(unit, trained, each.to[unit]);
      });
    }
  }
}

void ModelGenerator::gather_stages(const Gathered& gathered) {
  const bridge::NoAutograd no_autograd;
  const ModelPart& part = gathered.units->part();
  parallel::Communicator& stages = rank_.groups.along(spec::Axis::kPipe);
  const auto bring_own = [&](std::size_t unit, const at::Tensor& to) {
    const auto own = std::find(part.numbers().begin(), part.numbers().end(), unit);
    if (part.writes(unit))
      gathered.units->bring(static_cast<std::size_t>(own - part.numbers().begin()), to);
  };
  const auto broadcast = [&](std::size_t unit, const at::Tensor& to) {
    stages.broadcast(to, static_cast<int>(part.stage_of(unit)));
  };
  const std::vector<spec::FlatUnit> layout = part.layout_of(spec::undivided(rank_.spec.shape));
  for (std::size_t u = 0; u < layout.size(); ++u) {
    if (!gathered.parts) {
      bring_own(u, gathered.to[u]);
      continue;
    }
    const at::Tensor unit = region(spec::kWholeUnitPart).narrow(0, 0, layout[u].elements);
    bring_own(u, unit);
    broadcast(u, unit);
    gathered.parts->run(u, unit, gathered.to[u]);
  }
  for (std::size_t u = 0; !gathered.parts && u < layout.size(); ++u) broadcast(u, gathered.to[u]);
}

}  // namespace neap::train
