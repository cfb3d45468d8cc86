#include "train/sliced_weights.h"

#include <ATen/ATen.h>

#include <exception>
#include <functional>
#include <utility>

#include "bridge/no_autograd.h"

namespace neap::train {
namespace {

std::size_t count_blocks(const spec::JobModel& model) {
  return static_cast<std::size_t>(model.shape.blocks());
}

step::SlicedTables tables_of(const spec::JobModel& model) {
  return step::sliced_tables(model.shape, model.head, spec::flat_layout(model.shape, model.head));
}

// What passes release may not throw.
Status caught(const std::function<void()>& work) {
  const bridge::NoAutograd no_autograd;
  try {
    work();
    return {};
  } catch (const Error& e) {
    return e.status();
  } catch (const std::exception& e) {
    return {ErrorCode::kInternal, e.what()};
  }
}

}  // namespace

SlicedWeights::SlicedWeights(parallel::Communicator& ranks, const spec::JobModel& model,
                             spec::UnitSlices slices, const at::Tensor& slice, Memory memory,
                             bool overlaps)
    : WindowedBlocks(count_blocks(model), memory.slots.size(), {}, tables_of(model).turns),
      ranks_(ranks),
      units_(spec::flat_layout(model.shape, model.head)),
      slices_(std::move(slices)),
      memory_(std::move(memory)),
      tables_(tables_of(model)),
      overlaps_(overlaps),
      filled_(memory_.slots.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].block >= 0) blocks_.push_back(u);
    own_.push_back(slice.narrow(0, slices_.slice_first(u, ranks_.rank()),
                                slices_.range(u, ranks_.rank()).count));
  }
}

at::Tensor SlicedWeights::place_of(const step::SlicedTables::Placed& placed) const {
  return memory_.tables.narrow(0, placed.first, units_[placed.unit].elements);
}

std::vector<at::Tensor> SlicedWeights::places() const {
  std::vector<at::Tensor> out(units_.size());
  for (const std::size_t u : blocks_)
    out[u] = memory_.slots.front().narrow(0, 0, units_[u].elements);
  for (const auto& turn : tables_.units)
    for (const step::SlicedTables::Placed& placed : turn) out[placed.unit] = place_of(placed);
  return out;
}

parallel::Communicator::PartialGather SlicedWeights::gather_of(std::size_t unit,
                                                               const at::Tensor& to) const {
  return {own_[unit], to.narrow(0, 0, units_[unit].elements), slices_.counts(unit)};
}

void SlicedWeights::gather_unit(std::size_t unit, const at::Tensor& whole) {
  const bridge::NoAutograd no_autograd;
  ranks_.wait_for(ranks_.begin_gathers({gather_of(unit, whole)}));
}

void SlicedWeights::gather(const std::vector<at::Tensor>& whole) {
  const bridge::NoAutograd no_autograd;
  std::int64_t last = 0;
  for (std::size_t u = 0; u < units_.size(); ++u)
    last = ranks_.begin_gathers({gather_of(u, whole[u])});
  ranks_.wait_for(last);
}

void SlicedWeights::gather_each(const TakeUnit& take) {
  const std::vector<at::Tensor> to = places();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    gather_unit(u, to[u]);
    take(u, to[u]);
  }
}

void SlicedWeights::expect(step::Sweep sweep, std::int64_t passes) {
  forget();
  WindowedBlocks::expect(sweep, passes);
}

Status SlicedWeights::bring(step::BlockWindow::Place place) {
  return caught([&] {
    filled_[place.slot] =
        ranks_.begin_gathers({gather_of(blocks_[place.block], memory_.slots[place.slot])});
    if (!overlaps_) ranks_.wait_for(filled_[place.slot]);
  });
}

Status SlicedWeights::wait_for_slot(std::size_t slot) {
  return caught([&] { ranks_.wait_for(filled_[slot]); });
}

Status SlicedWeights::begin_turn(step::Table table, const step::TableTurns::Turn&) {
  return caught([&] {
    std::vector<parallel::Communicator::PartialGather> gathers;
    for (const step::SlicedTables::Placed& placed : tables_.units[step::index_of(table)])
      gathers.push_back(gather_of(placed.unit, place_of(placed)));
    ranks_.wait_for(ranks_.begin_gathers(gathers));
  });
}

}  // namespace neap::train
