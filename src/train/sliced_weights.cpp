#include "train/sliced_weights.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <utility>

#include "bridge/no_autograd.h"
#include "bridge/streams.h"
#include "parallel/run_collectively.h"

namespace neap::train {
namespace {

step::SlicedTables tables_of(const spec::JobModel& model) {
  return step::sliced_tables(model.shape, model.head, spec::flat_layout(model.shape, model.head));
}

// Passes' release() must not throw.
Status caught(const std::function<void()>& work) {
  const bridge::NoAutograd no_autograd;
  return parallel::status_of(work);
}

}  // namespace

SlicedWeights::SlicedWeights(parallel::Communicator& ranks, const spec::JobModel& model,
                             spec::UnitSlices slices, const at::Tensor& slice, Memory memory,
                             bool overlaps, bridge::StreamedSlices* host)
    : WindowedBlocks(static_cast<std::size_t>(model.shape.blocks()), memory.slots.size(), {},
                     tables_of(model).turns),
      ranks_(ranks),
      units_(spec::flat_layout(model.shape, model.head)),
      slices_(std::move(slices)),
      memory_(std::move(memory)),
      tables_(tables_of(model)),
      overlaps_(overlaps),
      host_(host),
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
  const at::Tensor whole = to.narrow(0, 0, units_[unit].elements);
  if (host_ == nullptr) return {own_[unit], whole, slices_.counts(unit)};
  const spec::UnitSlices::Range mine = slices_.range(unit, ranks_.rank());
  return {whole.narrow(0, mine.first, mine.count), whole, slices_.counts(unit)};
}

bridge::StreamedSlices::Range SlicedWeights::range_of(std::size_t unit, std::int64_t to) const {
  const auto bytes = [&](std::int64_t elements) {
    return Bytes(static_cast<std::uint64_t>(elements) * memory_.slots.front().itemsize());
  };
  const spec::UnitSlices::Range mine = slices_.range(unit, ranks_.rank());
  return {bytes(slices_.slice_first(unit, ranks_.rank())), bytes(mine.count),
          bytes(to + mine.first)};
}

void SlicedWeights::fetch(std::size_t slot, std::size_t unit, std::int64_t to) {
  if (host_ != nullptr) throw_if_error(host_->fetch(slot, range_of(unit, to)));
}

std::int64_t SlicedWeights::begin(
    std::size_t slot, const std::vector<parallel::Communicator::PartialGather>& gathers) {
  if (host_ == nullptr) return ranks_.begin_gathers(gathers);
  const at::Device device = memory_.slots.front().device();
  if (!device.is_cuda()) {
    throw_if_error(host_->wait_for_slot(slot));
    return ranks_.begin_gathers(gathers);
  }
  // A separate stream waits for what the gather reads, so that the main stream continues.
  if (!fetched_) fetched_ = bridge::pool_stream(device, bridge::StreamPriority::kUsual);
  bridge::order(bridge::current_stream(device), *fetched_);
  throw_if_error(host_->hold(static_cast<device::StreamId>(reinterpret_cast<std::uintptr_t>(
                                 bridge::native_handle(*fetched_))),
                             slot));
  const c10::StreamGuard guard(*fetched_);
  return ranks_.begin_gathers(gathers);
}

void SlicedWeights::gather(const std::vector<Target>& units) {
  const bridge::NoAutograd no_autograd;
  if (host_ != nullptr) throw_if_error(host_->begin_after_work());
  std::int64_t last = 0;
  for (const Target& to : units) {
    if (host_ != nullptr) throw_if_error(host_->fetch_to_generate(to.part, range_of(to.unit, 0)));
    last = begin(0, {gather_of(to.unit, to.whole)});
    if (host_ == nullptr) continue;
    throw_if_error(host_->wait_for_slot(0));
    if (to.unit + 1 < units_.size()) throw_if_error(host_->read_ahead(range_of(to.unit + 1, 0)));
  }
  ranks_.wait_for(last);
}

void SlicedWeights::gather_each(
    const std::function<void(std::size_t unit, const at::Tensor& whole)>& take) {
  const std::vector<at::Tensor> to = places();
  std::vector<std::int64_t> first(units_.size());  // start of a table's place
  for (const auto& turn : tables_.units)
    for (const step::SlicedTables::Placed& placed : turn) first[placed.unit] = placed.first;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const bridge::NoAutograd no_autograd;
    const std::size_t slot = units_[u].block >= 0 ? 0 : memory_.slots.size();
    // Starts after the work that reads the previous unit.
    if (host_ != nullptr) throw_if_error(host_->begin_after_work());
    fetch(slot, u, first[u]);
    const std::int64_t begun = begin(slot, {gather_of(u, to[u])});
    if (host_ != nullptr) throw_if_error(host_->wait_for_slot(slot));
    ranks_.wait_for(begun);
    take(u, to[u]);
  }
}

void SlicedWeights::expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
  forget();
  if (host_ != nullptr) throw_if_error(host_->forget_ahead());
  WindowedBlocks::expect(sweep, passes, chunk);
}

Status SlicedWeights::bring(step::BlockWindow::Place place) {
  return caught([&] {
    const std::size_t unit = blocks_[place.block];
    fetch(place.slot, unit);
    if (const auto next = brought_then(); host_ != nullptr && next)  // from disk
      throw_if_error(host_->read_ahead(range_of(blocks_[*next], 0)));
    filled_[place.slot] = begin(place.slot, {gather_of(unit, memory_.slots[place.slot])});
    if (!overlaps_) throw_if_error(wait_for_slot(place.slot));
  });
}

Status SlicedWeights::wait_for_slot(std::size_t slot) {
  if (host_ != nullptr) NEAP_TRY(host_->wait_for_slot(slot));
  return caught([&] { ranks_.wait_for(filled_[slot]); });
}

Status SlicedWeights::begin_turn(step::Table table, const step::TableTurns::Turn&) {
  return caught([&] {
    const std::size_t slot = memory_.slots.size();
    std::vector<parallel::Communicator::PartialGather> gathers;
    for (const step::SlicedTables::Placed& placed : tables_.units[step::index_of(table)]) {
      fetch(slot, placed.unit, placed.first);
      gathers.push_back(gather_of(placed.unit, place_of(placed)));
    }
    const std::int64_t begun = begin(slot, gathers);
    if (host_ != nullptr) throw_if_error(host_->wait_for_slot(slot));
    ranks_.wait_for(begun);
  });
}

}  // namespace neap::train
