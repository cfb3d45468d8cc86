#include "train/sharded_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"

namespace neap::train {

using spec::TagKind;

ShardedGradients::ShardedGradients(const RankModel& model, const spec::StatePlacement& placement)
    : rank_(model),
      placement_(placement),
      offloaded_(model.runtime.streamed_slices(model.tag(TagKind::kUnitGradients))),
      ops_(model.runtime.device(), bridge::KernelChoice{},
           ops::Peers{&model.groups.tensor(), &model.groups.context()}) {}

at::Tensor ShardedGradients::slot(std::string_view name) const {
  return rank_.region(TagKind::kUnitGradients, name,
                      bridge::to_aten(placement_.optimizer().gradients));
}

at::Tensor ShardedGradients::unit(std::size_t unit) const {
  const spec::FlatUnit& of = placement_.units()[unit];
  return slot(step::gradient_slot(of, rank_.spec.shape, rank_.spec.head)).narrow(0, 0, of.elements);
}

at::Tensor ShardedGradients::shard() const {
  if (offloaded_ != nullptr) return {};
  return rank_.region(TagKind::kGradients, spec::kSlicePart,
                      bridge::to_aten(placement_.optimizer().gradients));
}

void ShardedGradients::receive_from(ops::Transformer& model,
                                    const std::vector<OptimizerUnit>& pieces) {
  model_ = &model;
  pieces_ = &pieces;
  std::vector<step::GradientSlots<ops::AtenOps>::Unit> units;
  for (std::size_t u = 0; u < placement_.units().size(); ++u)
    units.push_back({placement_.units()[u], unit(u)});
  if (offloaded_ != nullptr) offload();
  const bool behind = step::sums_overlap_backward(ops_, rank_.spec.shape);
  parallel::Communicator& ranks = rank_.groups.shards();
  Hosted* const hosted = offloaded_ != nullptr ? this : nullptr;
  slots_.emplace(ops_, std::move(units), pieces, rank_.spec.shape, rank_.spec.head,
                 step::GradientSlots<ops::AtenOps>::Sums{
                     [this, behind, &ranks](std::size_t unit, const at::Tensor& whole) {
                       if (behind) return ranks.begin_sums({{whole, placement_.counts(unit)}});
                       ranks.reduce_scatter(whole, placement_.counts(unit));
                       return std::int64_t{0};
                     },
                     [&ranks](std::int64_t begun) { ranks.wait_for(begun); }},
                 hosted);
  model.send_gradients(&*slots_);
}

void ShardedGradients::offload() {
  const std::vector<bridge::SlotPart>& slots = offloaded_->slots();
  for (const spec::Piece& piece : placement_.pieces(rank_.groups.shards().rank())) {
    const std::string own = step::own_slot(
        step::gradient_slot(placement_.units()[piece.unit], rank_.spec.shape, rank_.spec.head));
    const auto found = std::find_if(slots.begin(), slots.end(),
                                    [&](const auto& each) { return each.name == own; });
    const at::Tensor memory = slot(own).narrow(0, 0, piece.count);
    parts_.push_back({static_cast<std::size_t>(found - slots.begin()),
                      memory,
                      {spec::tensor_bytes(piece.slice_first, placement_.optimizer().gradients),
                       Bytes(memory.nbytes()), Bytes()}});
  }
}

void ShardedGradients::fetch(std::size_t piece) {
  throw_if_error(offloaded_->begin_after_work());
  throw_if_error(offloaded_->begin(parts_[piece].slot, parts_[piece].range));
}

at::Tensor ShardedGradients::use(std::size_t piece) {
  throw_if_error(offloaded_->arrive(parts_[piece].slot));
  throw_if_error(offloaded_->wait_for_slot(parts_[piece].slot));
  return parts_[piece].memory;
}

// Gradients are summed over replicas, and norms are computed, while they are on the device.
void ShardedGradients::leave(std::size_t piece, bool complete) {
  const bridge::NoAutograd no_autograd;
  const at::Tensor& gradients = parts_[piece].memory;
  if (complete) {
    parallel::Communicator& replicas = rank_.groups.replicas();
    if (!replicas.alone()) replicas.wait_for(replicas.begin_sums({{gradients, {}}}));
    const OptimizerUnit& own = (*pieces_)[piece];
    model_->weights().source->keep_norms(
        step::key_of(own.unit, rank_.spec.shape),
        step::part_norms(ops_, own.unit, own.first, gradients, rank_.spec.shape.tensor));
  }
  throw_if_error(offloaded_->begin_after_work());
  throw_if_error(offloaded_->store(parts_[piece].slot, parts_[piece].range));
}

}  // namespace neap::train
