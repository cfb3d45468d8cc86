#include "train/model_worker.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "step/units/block_buffers.h"

namespace neap::train {
namespace {

using spec::TagKind;

// Offloaded data as a tensor (elements,).
at::Tensor host_tensor(const bridge::Resting& storage, std::int64_t elements,
                       at::ScalarType dtype) {
  return at::from_blob(storage.data(), {elements}, at::dtype(dtype));
}

std::optional<ops::Lora> lora_of(const WorkerSpec& spec) {
  if (spec.lora.rank == 0) return std::nullopt;
  ops::Lora lora;
  lora.shape = spec.lora;
  return lora;
}

}  // namespace

ModelWorker::ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec)
    : runtime_(runtime),
      groups_(groups),
      spec_(std::move(spec)),
      layout_(spec::flat_layout(spec_.shape, spec_.head)) {
  const at::ScalarType dtype = runtime_.compute_dtype();
  std::optional<ops::Lora> lora = lora_of(spec_);
  if (lora) adapter_layout_ = spec::lora_layout(spec_.shape, spec_.head, lora->shape);
  numbers_ = spec::numbers_in(spec::flat_layout(spec_.whole, spec_.head), layout_);
  if (lora)
    adapter_numbers_ =
        spec::numbers_in(spec::lora_layout(spec_.whole, spec_.head, lora->shape), adapter_layout_);
  if (shard().ranks > 1) {
    const spec::Architecture& whole = spec_.whole;
    cuts_.emplace(whole, shard().ranks,
                  spec::units_of(spec::flat_layout(whole, spec_.head), numbers_), layout_);
    if (lora)
      adapter_cuts_.emplace(
          whole, shard().ranks,
          spec::units_of(spec::lora_layout(whole, spec_.head, lora->shape), adapter_numbers_),
          adapter_layout_);
  }
  if (spec_.trained) place_states();
  if (spec_.sliced) slice_base();
  weights_ = base_weights();
  if (lora) adapters_ = regions(TagKind::kAdapter, adapter_layout_, dtype);
  const std::vector<at::Tensor> places = places_of_base();
  ops::FlatTensors base{places, {}};
  if (lora) lora->adapters.weights = adapters_;
  if (spec_.trained) {
    ops::FlatTensors& tensors = lora ? lora->adapters : base;
    make_optimizer(tensors.weights, tensors.grads);
  }
  const std::optional<ops::StreamedBase> streamed = streamed_base();
  const bridge::KernelChoice kernels = runtime_.context().kernels();
  const ops::Peers peers{&groups_.tensor(), &groups_.context()};
  if (spec_.generates && (streamed || spec_.generation_part)) make_generator(lora);
  if (lora) {
    base_ =
        std::make_unique<ops::Transformer>(spec_.shape, spec_.head, ops::FlatTensors{places, {}},
                                           std::nullopt, streamed, kernels, peers);
  }
  model_ = std::make_unique<ops::Transformer>(spec_.shape, spec_.head, std::move(base),
                                              std::move(lora), streamed, kernels, peers);
  if (gradients_) {
    model_->send_gradients(&*gradients_);
  } else if (optimizer_) {
    model_->send_gradients(optimizer_->gradient_sink());
  }
  if (!has_stages()) return;
  links_.emplace(stages());
  model_->ops().set_stages(&*links_);
  if (base_) base_->ops().set_stages(&*links_);
}

std::vector<at::Tensor> ModelWorker::base_weights() {
  const at::ScalarType dtype = runtime_.compute_dtype();
  if (sliced_) return sliced_->own();
  if (!spec_.streamed) return regions(TagKind::kWeights, layout_, dtype);
  std::vector<at::Tensor> out;
  for (const spec::FlatUnit& unit : layout_) {
    const auto* const storage = hosted(unit);
    if (storage != nullptr && reads_blocks()) {
      out.emplace_back();
      continue;
    }
    out.push_back(storage != nullptr ? host_tensor(storage->resting_weights(), unit.elements, dtype)
                                     : region(TagKind::kWeights, unit, dtype));
  }
  return out;
}

const bridge::StreamedBlocks::Storage* ModelWorker::hosted(const spec::FlatUnit& unit) const {
  if (!spec_.streamed) return nullptr;
  const bridge::StreamedBlocks& blocks = runtime_.streamed_blocks(tag(TagKind::kBuffers));
  if (unit.block >= 0)
    return &blocks.block(static_cast<std::size_t>(spec_.shape.place_of_block(unit.block)));
  return blocks.table(unit.name);
}

void ModelWorker::slice_base() {
  const auto part = [&](spec::TagKind kind, std::string_view name) {
    return runtime_.region(tag(kind), name, runtime_.compute_dtype());
  };
  SlicedWeights::Memory memory;
  for (std::size_t i = 0; i < step::kBlockSlots; ++i)
    memory.slots.push_back(
        part(TagKind::kBuffers, step::block_buffer(step::BufferOf::kWeights, i)));
  if (step::sliced_tables(spec_.shape, spec_.head, layout_).elements > 0)
    memory.tables = part(TagKind::kBuffers, step::table_buffer(step::BufferOf::kWeights));
  spec::UnitSlices slices =
      trains_slices() ? placement_->slices() : spec::even_slices(layout_, groups_.shards().size());
  bridge::StreamedSlices* const host =
      spec_.slice_on_host ? runtime_.streamed_slices(tag(TagKind::kBuffers)) : nullptr;
  const at::Tensor slice = host != nullptr ? host_tensor(host->slice(), slices.slice_elements(),
                                                         runtime_.compute_dtype())
                                           : part(TagKind::kWeights, spec::kSlicePart);
  sliced_ = std::make_unique<SlicedWeights>(
      groups_.shards(), spec_, std::move(slices), slice, std::move(memory),
      step::gathers_overlap_passes(spec_.shape, groups_.context().size(),
                                   groups_.shards().has_copy_lane()),
      host);
}

std::optional<ops::StreamedBase> ModelWorker::streamed_base() {
  if (sliced_) {
    ops::StreamedBase out;
    out.slots = &*sliced_;
    out.memory = sliced_->slots();
    return out;
  }
  if (!spec_.streamed) return std::nullopt;
  bridge::StreamedBlocks& blocks = runtime_.streamed_blocks(tag(TagKind::kBuffers));
  ops::StreamedBase out;
  out.slots = &blocks;
  const spec::FlatUnit& first = layout_.front();  // a block, on a stage without an embedding
  out.table_on_host =
      first.find(spec::Module::kTokenEmbedding) != nullptr && hosted(first) != nullptr;
  const auto weights = [&](const bridge::StreamedBlocks::Slot& slot) {
    return runtime_.region(tag(TagKind::kBuffers), slot.weights.name, runtime_.compute_dtype());
  };
  const auto gradients = [&](const bridge::StreamedBlocks::Slot& slot) {
    return runtime_.region(tag(TagKind::kBuffers), slot.gradients->name,
                           bridge::to_aten(optimizer_->spec().gradients));
  };
  for (const bridge::StreamedBlocks::Slot& slot : blocks.slots()) {
    out.memory.push_back(weights(slot));
    if (slot.gradients) out.gradients.push_back(gradients(slot));
    if (slot.inputs)
      out.inputs.push_back(
          runtime_.region(tag(TagKind::kBuffers), slot.inputs->name, runtime_.compute_dtype()));
  }
  if (const auto& slot = blocks.table_slot()) {
    out.table_memory = weights(*slot);
    if (slot->gradients) out.table_gradients = gradients(*slot);
  }
  return out;
}

void ModelWorker::place_states() {
  const spec::OptimizerSpec optimizer = value_or_throw(
      spec::OptimizerSpec::of(spec_.optimizer, bridge::to_step(runtime_.compute_dtype())));
  placement_.emplace(
      optimizer, trained_layout(),
      spec::DataParallel{groups_.copies().size(), spec_.zero_stage, groups_.replicas().size()});
}

void ModelWorker::make_optimizer(const std::vector<at::Tensor>& weights,
                                 std::vector<at::Tensor>& gradients) {
  const spec::OptimizerSpec& optimizer = placement_->optimizer();
  std::vector<OptimizerUnit> units;
  std::vector<bool> rests;  // whether a unit is offloaded
  for (std::size_t i = 0; i < trained_layout().size(); ++i) {
    const spec::FlatUnit& layout = trained_layout()[i];
    gradients.push_back(unit_gradients(layout, bridge::to_aten(optimizer.gradients)));
    OptimizerUnit& unit = units.emplace_back();
    unit.unit = layout;
    unit.index = static_cast<std::int64_t>((has_lora() ? adapter_numbers_ : numbers_)[i]);
    unit.on_host = hosted_trained(layout) != nullptr;
    rests.push_back(unit.on_host);
    if (!trains_slices()) unit.weights = weights[i];
    if (!placement_->slices_gradients()) unit.gradients = gradients[i];
  }
  make_pieces(units);
  if (placement_->slices_gradients()) take_gradients(gradients);
  const bool sliced = placement_->sliced();
  if (sliced) keep_own_gradients();
  if (runtime_.streamed_states(tag(TagKind::kOptimizer)) != nullptr)
    parts_.emplace(
        *placement_, groups_.shards().rank(), std::move(rests),
        step::SlicesOnHost{spec_.slice_on_host && trains_slices(), spec_.gradients_on_host},
        spec_.on_disk);
  std::optional<OptimizerSlice> slice;
  if (sliced) slice = OptimizerSlice{*placement_, pieces_, trains_slices(), replicas()};
  optimizer_ = std::make_unique<Optimizer>(
      spec_.optimizer, optimizer, random_key({spec_.seed, spec_.head == spec::Head::kScalar}),
      sliced ? std::move(units) : pieces_, groups_.shards(), std::move(slice));
}

void ModelWorker::keep_own_gradients() {
  const spec::Dtype dtype = placement_->optimizer().gradients;
  for (std::size_t u = 0; u < trained_layout().size(); ++u) {
    const spec::FlatUnit& unit = trained_layout()[u];
    if (hosted_trained(unit) == nullptr) continue;
    const spec::UnitSlices::Range own = placement_->slices().range(u, groups_.shards().rank());
    runtime_.streamed_blocks(tag(TagKind::kBuffers))
        .keep_own(unit.name, spec::tensor_bytes(own.first, dtype),
                  spec::tensor_bytes(own.count, dtype));
  }
}

void ModelWorker::take_gradients(const std::vector<at::Tensor>& gradients) {
  std::vector<step::GradientSlots<ops::AtenOps>::Unit> units;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    units.push_back({trained_layout()[i], gradients[i]});
  slice_ops_.emplace(runtime_.device(), bridge::KernelChoice{},
                     ops::Peers{&groups_.tensor(), &groups_.context()});
  const bool behind = step::sums_overlap_backward(*slice_ops_, spec_.shape);
  parallel::Communicator& ranks = groups_.shards();
  gradients_.emplace(*slice_ops_, std::move(units), pieces_, spec_.shape, spec_.head,
                     step::GradientSlots<ops::AtenOps>::Sums{
                         [this, behind, &ranks](std::size_t unit, const at::Tensor& whole) {
                           if (behind) return ranks.begin_sums({{whole, placement_->counts(unit)}});
                           ranks.reduce_scatter(whole, placement_->counts(unit));
                           return std::int64_t{0};
                         },
                         [&ranks](std::int64_t begun) { ranks.wait_for(begun); }},
                     hosted_gradients());
}

step::GradientSlots<ops::AtenOps>::Hosted* ModelWorker::hosted_gradients() {
  if (!spec_.gradients_on_host) return nullptr;
  const spec::Dtype dtype = placement_->optimizer().gradients;
  std::vector<HostedGradients::Piece> pieces;
  for (const spec::Piece& piece : placement_->pieces(groups_.shards().rank())) {
    const spec::FlatUnit& unit = placement_->units()[piece.unit];
    const std::string slot = step::own_slot(step::gradient_slot(unit, spec_.shape, spec_.head));
    pieces.push_back({slot,
                      runtime_.region(tag(TagKind::kUnitGradients), slot, bridge::to_aten(dtype))
                          .narrow(0, 0, piece.count),
                      spec::tensor_bytes(piece.slice_first, dtype)});
  }
  // Gradients are summed over replicas, and norms are computed, while they are on the device.
  const auto complete = [this](std::size_t piece, const at::Tensor& gradients) {
    if (replicas() != nullptr) replicas()->wait_for(replicas()->begin_sums({{gradients, {}}}));
    const OptimizerUnit& own = pieces_[piece];
    model_->weights().source->keep_norms(
        step::key_of(own.unit, spec_.shape),
        step::part_norms(*slice_ops_, own.unit, own.first, gradients, shard()));
  };
  hosted_gradients_ = std::make_unique<HostedGradients>(
      *runtime_.streamed_slices(tag(TagKind::kUnitGradients)), std::move(pieces), complete);
  return hosted_gradients_.get();
}

at::Tensor ModelWorker::unit_gradients(const spec::FlatUnit& unit, at::ScalarType dtype) {
  if (placement_->slices_gradients()) {
    return runtime_
        .region(tag(TagKind::kUnitGradients), step::gradient_slot(unit, spec_.shape, spec_.head),
                dtype)
        .narrow(0, 0, unit.elements);
  }
  const auto* const storage = hosted_trained(unit);
  return storage == nullptr ? region(TagKind::kGradients, unit, dtype)
                            : host_tensor(storage->resting_gradients(), unit.elements, dtype);
}

at::Tensor ModelWorker::state_part(std::size_t index, const spec::StatePart& part) {
  const bridge::StreamedStates* const streamed =
      runtime_.streamed_states(tag(spec::TagKind::kOptimizer));
  if (streamed == nullptr)
    return runtime_.region(tag(spec::TagKind::kOptimizer), part.name, at::kByte);
  return host_tensor(streamed->states(index), static_cast<std::int64_t>(part.bytes.count()),
                     at::kByte);
}

std::vector<at::Tensor> ModelWorker::regions(spec::TagKind kind,
                                             const std::vector<spec::FlatUnit>& units,
                                             at::ScalarType dtype) {
  std::vector<at::Tensor> out;
  out.reserve(units.size());
  for (const spec::FlatUnit& unit : units) {
    out.push_back(region(kind, unit, dtype));
  }
  return out;
}

at::Tensor ModelWorker::region(spec::TagKind kind, const spec::FlatUnit& unit,
                               at::ScalarType dtype) {
  return runtime_.region(tag(kind), unit.name, dtype).narrow(0, 0, unit.elements);
}

std::unique_ptr<bridge::Runtime::Scope> ModelWorker::hold(bool weights) {
  std::vector<spec::TagId> tags;
  if (weights && !spec_.slice_on_host) tags.push_back(tag(TagKind::kWeights));
  if (has_lora()) tags.push_back(tag(TagKind::kAdapter));
  if (spec_.trained && !parts_) tags.push_back(tag(TagKind::kOptimizer));
  return runtime_.hold(tags);
}

bridge::Resting ModelWorker::resting(const step::UpdatePart& part, step::StreamedKind kind) {
  if (kind == step::StreamedKind::kStates)
    return runtime_.streamed_states(tag(TagKind::kOptimizer))
        ->states(placement_->sliced() ? 0 : part.unit);
  if (spec_.slice_on_host) {
    const bool weights = kind == step::StreamedKind::kWeights;
    return runtime_.streamed_slices(tag(weights ? TagKind::kBuffers : TagKind::kUnitGradients))
        ->slice();
  }
  const auto* const storage = hosted_trained(trained_layout()[part.unit]);
  return kind == step::StreamedKind::kWeights ? storage->resting_weights()
                                              : storage->resting_gradients();
}

std::vector<at::Tensor> ModelWorker::update_slots() {
  std::vector<at::Tensor> out;
  for (const bridge::SlotPart& slot : runtime_.streamed_states(tag(TagKind::kOptimizer))->slots())
    out.push_back(runtime_.region(tag(TagKind::kOptimizer), slot.name, at::kByte));
  return out;
}

void ModelWorker::for_each_part(const std::function<void(const OptimizerUnit&)>& visit) {
  if (!parts_) {
    for (const OptimizerUnit& piece : pieces_) visit(piece);
    return;
  }
  bridge::StreamedStates& states = *runtime_.streamed_states(tag(TagKind::kOptimizer));
  const std::vector<at::Tensor> slots = update_slots();
  const std::vector<step::UpdatePart>& list = parts_->list();
  const auto copies = [&](std::size_t i) {
    std::vector<bridge::StreamedStates::Copy> out;
    for (const step::PartTensor& t : parts_->layout(list[i]).tensors)
      out.push_back({resting(list[i], t.kind), t.kind, t.storage_offset, t.slot_offset, t.bytes(),
                     t.fetched, t.stored, t.window_offset});
    return out;
  };
  ops::AtenOps ops(slots.at(0).device());
  states.for_each(list.size(), copies, [&](std::size_t i, std::size_t slot) {
    const auto in_slot = [&](const step::PartTensor& t) {
      return slots[slot]
          .narrow(0, static_cast<std::int64_t>(t.slot_offset.count()),
                  static_cast<std::int64_t>(t.bytes().count()))
          .view(bridge::to_aten(t.dtype));
    };
    visit(step::part_of(ops, pieces_[list[i].piece], list[i], parts_->layout(list[i]), in_slot));
  });
}

void ModelWorker::gather_weights() {
  optimizer_->gather_weights();
  if (parts_) gather_hosted();
}

void ModelWorker::gather_hosted() {
  bridge::StreamedStates& states = *runtime_.streamed_states(tag(TagKind::kOptimizer));
  const std::vector<at::Tensor> slots = update_slots();
  const std::vector<step::GatheredPart> parts =
      parts_->gathered(Bytes(slots.front().nbytes()), states.window());
  parallel::Communicator& ranks = groups_.shards();
  const spec::Dtype dtype = placement_->optimizer().weights;
  const auto copies = [&](std::size_t i) {
    const step::GatheredPart& part = parts[i];
    std::vector<bridge::StreamedStates::Copy> out;
    const auto add = [&](step::GatheredPart::Range range, bool own) {
      if (range.count == 0) return;
      out.push_back({hosted_trained(trained_layout()[part.unit])->resting_weights(),
                     step::StreamedKind::kWeights, part.storage_offset(range, dtype),
                     spec::tensor_bytes(range.first, dtype), spec::tensor_bytes(range.count, dtype),
                     own, !own, part.window_offset(range, dtype)});
    };
    add(part.own(ranks.rank()), true);
    for (const step::GatheredPart::Range others : part.others(ranks.rank())) add(others, false);
    return out;
  };
  states.for_each(parts.size(), copies, [&](std::size_t i, std::size_t slot) {
    const step::GatheredPart& part = parts[i];
    const auto bytes =
        static_cast<std::int64_t>(spec::tensor_bytes(part.elements(), dtype).count());
    const at::Tensor whole = slots[slot].narrow(0, 0, bytes).view(bridge::to_aten(dtype));
    const auto [first, count] = part.own(ranks.rank());
    ranks.wait_for(ranks.begin_gathers({{whole.narrow(0, first, count), whole, part.counts}}));
  });
}

}  // namespace neap::train
