#include "train/unit_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "step/units/block_buffers.h"
#include "train/sliced_weights.h"

namespace neap::train {
namespace {

// The sum of a tensor's bit patterns. It changes if one bit differs.
std::int64_t sum_of_bits(const at::Tensor& flat) {
  const at::ScalarType bits = flat.element_size() == 2 ? at::kShort : at::kInt;
  return flat.view(bits).sum(at::kLong).item<std::int64_t>();
}

// Ranks with the same elements.
parallel::Communicator& holders(const parallel::Groups& groups, bool sharded) {
  return sharded ? groups.replicas() : groups.copies();
}

SlicedWeights::Memory gathered_memory(const RankModel& model) {
  const auto buffer = [&](std::string_view name) {
    return model.region(spec::TagKind::kBuffers, name);
  };
  SlicedWeights::Memory out;
  for (std::size_t i = 0; i < step::kBlockSlots; ++i)
    out.slots.push_back(buffer(step::block_buffer(step::BufferOf::kWeights, i)));
  const spec::JobModel& of = model.spec;
  if (step::sliced_tables(of.shape, of.head, spec::flat_layout(of.shape, of.head)).elements > 0)
    out.tables = buffer(step::table_buffer(step::BufferOf::kWeights));
  return out;
}

class ResidentUnits final : public UnitStore {
 public:
  ResidentUnits(const RankModel& model, ModelPart part) : UnitStore(model, std::move(part)) {
    for (const spec::FlatUnit& unit : part_.layout())
      values_.push_back(model.region(tag()->kind, unit.name).narrow(0, 0, unit.elements));
  }
};

// In ZeRO shards.
class ShardedUnits final : public UnitStore {
 public:
  ShardedUnits(const RankModel& model, ModelPart part, const spec::UnitSlices& slices)
      : UnitStore(model, std::move(part)),
        host_(model.runtime.streamed_slices(model.tag(spec::TagKind::kBuffers))),
        weights_(model.groups.shards(), model.spec, slices,
                 host_ == nullptr ? model.region(spec::TagKind::kWeights, spec::kSlicePart)
                                  : host_tensor(host_->slice(), slices.slice_elements(),
                                                model.runtime.compute_dtype()),
                 gathered_memory(model),
                 step::gathers_overlap_passes(model.spec.shape, model.groups.context().size(),
                                              model.groups.shards().has_copy_lane()),
                 host_) {
    values_ = weights_.own();
  }
  [[nodiscard]] spec::UnitSlices::Range range(std::size_t unit) const override {
    return weights_.slices().range(unit, model_.groups.shards().rank());
  }
  [[nodiscard]] bool sharded() const override { return true; }
  [[nodiscard]] std::optional<spec::TagId> tag() const override {
    return host_ != nullptr ? std::nullopt : UnitStore::tag();
  }
  [[nodiscard]] Rests offloaded(std::size_t) const override {
    return host_ == nullptr ? Rests() : host_->slice();
  }
  [[nodiscard]] std::vector<at::Tensor> places() const override { return weights_.places(); }
  [[nodiscard]] std::optional<ops::StreamedBase> streamed(at::ScalarType) override {
    ops::StreamedBase out;
    out.slots = &weights_;
    out.memory = weights_.slots();
    add_inputs(out);
    return out;
  }
  void fill(const UnitFill& fill) override {
    const bridge::HostScope host;
    for (std::size_t u = 0; u < values_.size(); ++u) {
      const auto [first, count] = range(u);
      if (count == 0) continue;
      const at::Tensor unit =
          at::zeros({part_.layout()[u].elements}, at::dtype(values_[u].scalar_type()));
      fill(u, {unit});
      values_[u].copy_(unit.narrow(0, first, count));
    }
  }
  void bring(std::size_t unit, const at::Tensor& to) override {
    weights_.gather({target(unit, to)});
  }
  void gather(const std::vector<at::Tensor>& whole) override {
    std::vector<SlicedWeights::Target> units;
    for (std::size_t u = 0; u < whole.size(); ++u) units.push_back(target(u, whole[u]));
    weights_.gather(units);
  }
  void gather_each(const TakeUnit& take) override { weights_.gather_each(take); }

 private:
  [[nodiscard]] SlicedWeights::Target target(std::size_t unit, const at::Tensor& to) const {
    return {unit, to, host_ != nullptr ? place_to_generate(unit) : bridge::SlotPart()};
  }
  bridge::StreamedSlices* host_;  // null: the shard is on the device
  SlicedWeights weights_;
};

}  // namespace

at::Tensor host_tensor(const bridge::Resting& rests, std::int64_t elements, at::ScalarType dtype) {
  return at::from_blob(rests.data(), {elements}, at::dtype(dtype));
}

std::optional<spec::TagId> UnitStore::tag() const {
  return model_.tag(part_.adapters() ? spec::TagKind::kAdapter : spec::TagKind::kWeights);
}

at::Tensor UnitStore::gradients(std::size_t unit, at::ScalarType dtype) const {
  const spec::FlatUnit& of = part_.layout()[unit];
  return model_.region(spec::TagKind::kGradients, of.name, dtype).narrow(0, 0, of.elements);
}

std::optional<ops::StreamedBase> UnitStore::streamed(at::ScalarType) {
  ops::StreamedBase out;
  add_inputs(out);
  return out.input_slots == nullptr ? std::nullopt : std::optional(std::move(out));
}

void UnitStore::add_inputs(ops::StreamedBase& to) const {
  const plan::MemoryPlan& plan = model_.runtime.plan();
  const spec::TagId buffers = model_.tag(spec::TagKind::kBuffers);
  const std::optional<std::size_t> tag = plan.index_of(buffers);
  if (!tag || plan.tags[*tag].hosted.inputs.empty()) return;
  bridge::StreamedBlocks& inputs = model_.runtime.streamed_blocks(buffers);
  to.input_slots = &inputs;
  for (const bridge::StreamedBlocks::Slot& slot : inputs.slots())
    to.inputs.push_back(model_.region(spec::TagKind::kBuffers, slot.inputs->name));
}

void UnitStore::fill(const UnitFill& fill) {
  for (const at::Tensor& flat : values_)
    if (flat.defined()) flat.zero_();
  fill(0, values_);
}

void UnitStore::visit_parts(const PartVisit& visit) const {
  std::vector<std::size_t> first = {0};  // of a unit's tensors
  for (const spec::FlatUnit& unit : part_.whole())
    first.push_back(first.back() + unit.parameters.size());
  const parallel::Communicator& equal = holders(model_.groups, sharded());
  const auto rank = static_cast<std::size_t>(equal.rank());
  const auto ranks = static_cast<std::size_t>(equal.size());
  std::vector<FilePart> parts;
  for (std::size_t u = 0; u < values_.size(); ++u) {
    const std::size_t number = part_.numbers()[u];
    if (!part_.writes(number)) continue;
    const auto [from, count] = range(u);
    for (std::size_t i = 0; i < part_.layout()[u].parameters.size(); ++i) {
      const std::size_t tensor = first[number] + i;
      if (tensor % ranks == rank)
        parts.push_back({tensor, values_[u], weights::within(part_.runs(u, i), from, count)});
    }
    // If columns are sharded, each row is a run.
    if (part_.cut()) visit(std::exchange(parts, {}));
  }
  visit(parts);
}

void UnitStore::check_equal() const {
  if (model_.groups.world().alone()) return;
  std::int64_t all = 0, copied = 0;  // copied: elements that every tensor-parallel rank has
  for (std::size_t u = 0; u < values_.size(); ++u) {
    all += sum_of_bits(values_[u]);
    const std::int64_t start = range(u).first;
    for (const spec::SpreadRange& copy : spec::spread_ranges(part_.layout()[u])) {
      const std::int64_t from = std::max(start, copy.first);
      const std::int64_t end = std::min(start + values_[u].size(0), copy.first + copy.count);
      if (copy.spread.parts == 1 && from < end)
        copied += sum_of_bits(values_[u].narrow(0, from - start, end - from));
    }
  }
  const std::string what = format("The sum over the bits of the {} model's {}", model_.spec.name(),
                                  part_.adapters() ? "adapters" : "weights");
  holders(model_.groups, sharded()).expect_same(all, what + (sharded() ? " of one slice" : ""));
  model_.groups.tensor().expect_same(copied, what + " that ranks do not divide");
  if (part_.has_stages() && !part_.adapters() && model_.spec.whole.ties_table(model_.spec.head))
    check_equal_tables();
}

// The first and the last stage have copies of a tied embedding, which is their first unit.
void UnitStore::check_equal_tables() const {
  const spec::Architecture& shape = model_.spec.shape;
  at::Tensor sum = at::zeros({1}, at::kLong);
  if (shape.embeds() || shape.has_head()) sum.fill_(sum_of_bits(values_.front()));
  if (sharded()) model_.groups.shards().all_reduce(sum);
  parallel::Communicator& stages = model_.groups.along(spec::Axis::kPipe);
  const at::Tensor all = at::empty({stages.size()}, at::kLong);
  stages.all_gather(all, sum);
  if (at::equal(all[0], all[-1])) return;
  throw Error(
      ErrorCode::kInternal,
      format("The embedding of the {} model on the first stage and its copy on the last one "
             "differ",
             model_.spec.name()));
}

void UnitStore::bring(std::size_t unit, const at::Tensor& to) {
  at::Tensor(to).copy_(values_[unit]);
}

void UnitStore::gather(const std::vector<at::Tensor>& whole) {
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < whole.size(); ++u)
    if (whole[u].defined()) bring(u, whole[u]);
}

void UnitStore::gather_each(const TakeUnit& take) {
  for (std::size_t u = 0; u < values_.size(); ++u) take(u, values_[u]);
}

bridge::SlotPart UnitStore::place_to_generate(std::size_t unit) const {
  return model_.runtime.part(model_.tag(spec::TagKind::kBlocks),
                             model_.spec.divides_otherwise_to_generate()
                                 ? spec::kWholeUnitPart
                                 : std::string_view(part_.layout()[unit].name));
}

spec::StatePlacement place_states(const RankModel& model, const ModelPart& trained) {
  const spec::Dtype dtype = bridge::to_step(model.runtime.compute_dtype());
  return {value_or_throw(spec::OptimizerSpec::of(model.spec.optimizer, dtype)), trained.layout(),
          spec::DataParallel{model.groups.copies().size(), model.spec.zero_stage,
                             model.groups.replicas().size()}};
}

std::unique_ptr<UnitStore> make_units(const RankModel& model, ModelPart::Of units) {
  ModelPart part(model.spec, units);
  const plan::MemoryPlan& plan = model.runtime.plan();
  const std::optional<std::size_t> buffers = plan.index_of(model.tag(spec::TagKind::kBuffers));
  if (!buffers || part.adapters()) return std::make_unique<ResidentUnits>(model, std::move(part));
  if (!plan.tags[*buffers].gathers)
    return plan.tags[*buffers].hosted.blocks.empty()
               ? std::make_unique<ResidentUnits>(model, std::move(part))
               : make_streamed_units(model, std::move(part));
  const spec::UnitSlices slices =
      model.spec.trains_blocks() ? place_states(model, part).slices()
                                 : spec::even_slices(part.layout(), model.groups.shards().size());
  return std::make_unique<ShardedUnits>(model, std::move(part), slices);
}

}  // namespace neap::train
