#include "train/model_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "bridge/torch_dtypes.h"

namespace neap::train {

using spec::TagKind;

ModelOptimizer::ModelOptimizer(const RankModel& model, UnitStore& units)
    : rank_(model),
      placement_(place_states(model, units.part())),
      units_(units),
      states_at_(model.runtime.streamed_states(model.tag(TagKind::kOptimizer))) {
  if (placement_.slices_gradients()) sharded_.emplace(model, placement_);
  std::vector<OptimizerUnit> all = make_units();
  make_pieces(all);
  const bool sliced = placement_.sliced();
  if (offloaded()) parts_.emplace(update_parts(all));
  std::optional<OptimizerSlice> slice;
  if (sliced)
    slice = OptimizerSlice{placement_, pieces_, units_.sharded(),
                           rank_.groups.replicas().alone() ? nullptr : &rank_.groups.replicas()};
  optimizer_ = std::make_unique<Optimizer>(
      rank_.spec.optimizer, placement_.optimizer(),
      random_key({rank_.spec.seed, rank_.spec.head == spec::Head::kScalar}),
      sliced ? std::move(all) : pieces_, rank_.groups.shards(), std::move(slice));
}

std::vector<OptimizerUnit> ModelOptimizer::make_units() {
  const spec::Dtype dtype = placement_.optimizer().gradients;
  std::vector<OptimizerUnit> out;
  for (std::size_t u = 0; u < part().layout().size(); ++u) {
    gradients_.push_back(sharded_ ? sharded_->unit(u)
                                  : units_.gradients(u, bridge::to_aten(dtype)));
    OptimizerUnit& unit = out.emplace_back();
    unit.unit = part().layout()[u];
    unit.index = static_cast<std::int64_t>(part().numbers()[u]);
    unit.on_host = !units_.sharded() && units_.offloaded(u);
    if (!units_.sharded()) unit.weights = units_.values()[u];
    if (!sharded_) unit.gradients = gradients_[u];
    if (!placement_.sliced()) continue;
    const auto [first, count] = placement_.slices().range(u, rank_.groups.shards().rank());
    units_.keep_gradients(u, spec::tensor_bytes(first, dtype), spec::tensor_bytes(count, dtype));
  }
  return out;
}

void ModelOptimizer::make_pieces(const std::vector<OptimizerUnit>& units) {
  const std::vector<spec::StatePart> parts = placement_.parts();
  for (std::size_t p = 0; p < parts.size(); ++p)
    states_.push_back(offloaded() ? host_tensor(states_at_->states(p),
                                                static_cast<std::int64_t>(parts[p].bytes.count()),
                                                at::kByte)
                                  : rank_.region(TagKind::kOptimizer, parts[p].name, at::kByte));
  const at::Tensor gradients = sharded_ ? sharded_->shard() : at::Tensor();
  for (const spec::Piece& piece : placement_.pieces(rank_.groups.shards().rank())) {
    spec::UnitState layout = placement_.state(piece);
    const at::Tensor states =
        states_[piece.part].narrow(0, static_cast<std::int64_t>(piece.offset.count()),
                                   static_cast<std::int64_t>(layout.bytes().count()));
    ops::AtenOps ops(rank_.runtime.device());
    OptimizerUnit& own = pieces_.emplace_back(step::make_piece(
        ops, units[piece.unit], piece, std::move(layout),
        [&](const spec::StateTensor& tensor) { return state_view(states, tensor); }));
    if (units_.sharded()) own.weights = units_.values()[piece.unit];
    own.on_host = own.on_host || (sharded_ && sharded_->offloaded() != nullptr);
    if (gradients.defined()) own.gradients = gradients.narrow(0, piece.slice_first, piece.count);
  }
}

step::UpdateParts ModelOptimizer::update_parts(const std::vector<OptimizerUnit>& units) const {
  std::vector<bool> on_host;
  on_host.reserve(units.size());
  for (const OptimizerUnit& unit : units) on_host.push_back(unit.on_host);
  return {placement_, rank_.groups.shards().rank(), std::move(on_host),
          rank_.spec.trained_storage(rank_.spec.storage)};
}

void ModelOptimizer::receive_from(ops::Transformer& model) {
  if (sharded_) return sharded_->receive_from(model, pieces_);
  model.send_gradients(optimizer_->gradient_sink());
}

at::Tensor ModelOptimizer::own_part(const spec::WholeState& state) const {
  const auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const OptimizerUnit& each) {
    return each.unit.name == placement_.units()[state.unit].name;
  });
  return piece == pieces_.end() ? at::Tensor() : piece->state[state.tensor];
}

void ModelOptimizer::start(const UnitFill& fill) {
  optimizer_->restore_steps(0);
  for (const at::Tensor& state : states_) at::Tensor(state).zero_();
  if (!fill) {  // master weights start from the weights
    for (const OptimizerUnit& piece : pieces_) piece.target().copy_(piece.weights);
    return;
  }
  if (placement_.sliced() && placement_.optimizer().has_master())
    return start_sharded_masters(fill);
  if (units_.sharded()) return units_.fill(fill);
  // Master weights are loaded from the file in full precision, and the weights are rounded from
  // them. A target that is the weights themselves is not copied.
  std::vector<at::Tensor> targets;
  for (const OptimizerUnit& unit : optimizer_->units()) targets.push_back(unit.target());
  for (at::Tensor& target : targets) target.zero_();
  fill(0, targets);
  for (std::size_t i = 0; i < targets.size(); ++i) optimizer_->units()[i].weights.copy_(targets[i]);
}

// Goes through host memory one unit at a time, in the type of the master weights.
void ModelOptimizer::start_sharded_masters(const UnitFill& fill) {
  const bridge::HostScope host;
  const at::ScalarType master = bridge::to_aten(placement_.optimizer().master);
  auto piece = pieces_.begin();
  for (std::size_t u = 0; u < optimizer_->units().size(); ++u) {
    const OptimizerUnit& unit = optimizer_->units()[u];
    const at::Tensor whole = at::zeros({unit.unit.elements}, at::dtype(master));
    fill(u, {whole});
    const at::Tensor own = units_.values()[u];
    own.copy_(whole.narrow(0, units_.range(u).first, own.numel()));
    if (piece == pieces_.end() || piece->index != unit.index) continue;
    const at::Tensor target = piece->master();
    target.copy_(whole.narrow(0, piece->first, target.size(0)));
    ++piece;
  }
}

bridge::Resting ModelOptimizer::resting(const step::UpdatePart& part, step::StreamedKind kind) {
  if (kind == step::StreamedKind::kStates)
    return states_at_->states(placement_.sliced() ? 0 : part.unit);
  if (kind == step::StreamedKind::kWeights) return *units_.offloaded(part.unit);
  return sharded_ ? sharded_->offloaded()->slice() : *units_.offloaded_gradients(part.unit);
}

std::vector<at::Tensor> ModelOptimizer::update_slots() {
  std::vector<at::Tensor> out;
  for (const bridge::SlotPart& slot : states_at_->slots())
    out.push_back(rank_.region(TagKind::kOptimizer, slot.name, at::kByte));
  return out;
}

void ModelOptimizer::for_each_part(const std::function<void(const OptimizerUnit&)>& visit) {
  if (!parts_) {
    for (const OptimizerUnit& piece : pieces_) visit(piece);
    return;
  }
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
  states_at_->for_each(list.size(), copies, [&](std::size_t i, std::size_t slot) {
    const auto in_slot = [&](const step::PartTensor& t) {
      return slots[slot]
          .narrow(0, static_cast<std::int64_t>(t.slot_offset.count()),
                  static_cast<std::int64_t>(t.bytes().count()))
          .view(bridge::to_aten(t.dtype));
    };
    visit(step::part_of(ops, pieces_[list[i].piece], list[i], parts_->layout(list[i]), in_slot));
  });
}

void ModelOptimizer::gather_weights() {
  optimizer_->gather_weights();
  if (parts_) gather_offloaded();
}

void ModelOptimizer::gather_offloaded() {
  const std::vector<at::Tensor> slots = update_slots();
  const std::vector<step::GatheredPart> parts =
      parts_->gathered(Bytes(slots.front().nbytes()), states_at_->window());
  parallel::Communicator& ranks = rank_.groups.shards();
  const spec::Dtype dtype = placement_.optimizer().weights;
  const auto copies = [&](std::size_t i) {
    const step::GatheredPart& part = parts[i];
    std::vector<bridge::StreamedStates::Copy> out;
    const auto add = [&](step::GatheredPart::Range range, bool own) {
      if (range.count == 0) return;
      out.push_back({*units_.offloaded(part.unit), step::StreamedKind::kWeights,
                     part.storage_offset(range, dtype), spec::tensor_bytes(range.first, dtype),
                     spec::tensor_bytes(range.count, dtype), own, !own,
                     part.window_offset(range, dtype)});
    };
    add(part.own(ranks.rank()), true);
    for (const step::GatheredPart::Range others : part.others(ranks.rank())) add(others, false);
    return out;
  };
  states_at_->for_each(parts.size(), copies, [&](std::size_t i, std::size_t slot) {
    const step::GatheredPart& part = parts[i];
    const auto bytes =
        static_cast<std::int64_t>(spec::tensor_bytes(part.elements(), dtype).count());
    const at::Tensor whole = slots[slot].narrow(0, 0, bytes).view(bridge::to_aten(dtype));
    const auto [first, count] = part.own(ranks.rank());
    ranks.wait_for(ranks.begin_gathers({{whole.narrow(0, first, count), whole, part.counts}}));
  });
}

}  // namespace neap::train
