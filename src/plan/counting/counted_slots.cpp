#include "plan/counting/counted_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/counting/counted_peers.h"
#include "step/units/sliced_tables.h"

namespace neap::plan {

using step::CountedTensor;
using step::Direction;

CountedSlots::CountedSlots(step::CountingOps& ops, const step::Weights<T>& weights,
                           CountedLayers layers)
    : WindowedBlocks(layers.blocks.size(), kBlockSlots,
                     {layers.gradients.has_value(), layers.streams_inputs()}, layers.tables.turns),
      ops_(ops),
      weights_(weights),
      layers_(std::move(layers)) {}

CountedLayers offloaded_layers(const ModelRole& role, spec::Dtype dtype,
                               const spec::ModelStorage& storage) {
  CountedLayers out;
  out.blocks = fetched_blocks(role, dtype, storage.layers);
  out.tables = hosted_tables(role, storage.streams_tables());
  if (role.trains_blocks()) out.gradients = optimizer_of(role, dtype).gradients;
  out.home = storage.layers;
  out.inputs = storage.inputs;
  out.tables_in_files = role.reads_files(storage.layers);
  return out;
}

CountedLayers offloaded_inputs(const ModelRole& role, spec::Dtype dtype) {
  CountedLayers out;
  out.blocks = hosted_blocks(role, dtype);
  for (PartPlan& block : out.blocks) block.bytes = Bytes();
  out.inputs = spec::Home::kHost;
  return out;
}

CountedLayers sharded_layers(const ModelRole& role, spec::Dtype dtype, spec::Home home,
                             bool overlaps) {
  const std::vector<spec::FlatUnit> layout = spec::flat_layout(role.shape, role.head);
  const step::SlicedTables tables = step::sliced_tables(role.shape, role.head, layout);
  CountedLayers out;
  out.blocks = hosted_blocks(role, dtype);
  out.tables.turns = tables.turns;
  out.ranks = role.ranks;
  out.overlaps = overlaps;
  out.home = home;
  for (std::size_t t = 0; t < out.turns.size(); ++t)
    for (const step::SlicedTables::Placed& placed : tables.units[t])
      out.turns[t] += spec::tensor_bytes(layout[placed.unit].elements, dtype);
  if (home == spec::Home::kDevice) return out;
  const std::vector<Bytes> own = slice_bytes(role, dtype);
  for (std::size_t u = 0; u < layout.size(); ++u)
    if (layout[u].block >= 0) out.own.push_back(own[u]);
  for (std::size_t t = 0; t < out.turns.size(); ++t)
    for (const step::SlicedTables::Placed& placed : tables.units[t])
      out.own_turns[t] += own[placed.unit];
  return out;
}

double CountedSlots::load(double bytes, double from, Bytes own) {
  if (!layers_.ranks) return ops_.begin_copy(Direction::kToDevice, bytes, from);
  const double sent = step::gathered_bytes(layers_.ranks->shards(), bytes);
  sent_ += sent;
  const bool at_once = !ops_.profile().cuda || !layers_.overlaps;
  if (!own.is_zero()) {
    // The host waits for the read, which started when the previous read had ended.
    if (is_on_disk()) {
      const double asked = ops_.now(), begun = read_ahead_ ? read_ : asked;
      read_ = ops_.begin_disk(Direction::kToDevice, static_cast<double>(own.count()), begun);
      hidden_ = std::max(0.0, std::min(read_, asked) - begun);
      ops_.wait_until(read_);
      from = std::max(from, read_);
    }
    from = ops_.begin_copy(Direction::kToDevice, static_cast<double>(own.count()), from);
    if (at_once) ops_.wait_until(from);
  }
  gathered_ = std::max({gathered_, from, at_once ? ops_.now() : 0}) +
              ops_.peer_seconds(sent, 1, spec::Axis::kShards);
  if (at_once) wait(gathered_);
  return gathered_;
}

// The host fills all buffers before the first use. So each read overlaps with the block before the
// one counted here, and nothing is read during the last block. Among equal blocks, it does not
// matter which one overlaps with nothing.
void CountedSlots::end_reads() {
  read_ahead_ = false;
  ops_.wait_until(ops_.now() + std::exchange(hidden_, 0));
}

void CountedSlots::wait(double time) {
  if (layers_.ranks) {
    ops_.wait_for_peers(time, std::exchange(sent_, 0));
  } else {
    ops_.wait_until(time);
  }
}

double CountedSlots::begin_behind_gathers(double seconds) {
  for (; !queued_.empty(); queued_.pop_front()) fetch(queued_.front());
  return gathered_ = std::max(gathered_, ops_.now()) + seconds;
}

void CountedSlots::begin_mini_batch(std::int64_t passes_back) {
  if (layers_.each_once) {
    drain();
    forget();
  }
  passes_back_ = passes_back;
  completes_.reset();
  WindowedBlocks::begin_mini_batch(passes_back);
}

void CountedSlots::expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
  if (sweep == step::Sweep::kForwardBackward) begin_mini_batch(passes);
  if (layers_.ranks) {
    drain();
    forget();
  }
  sweep_ = sweep;
  passes_ = passes;
  chunk_ = chunk;
  position_ = 0;
  queued_.clear();
  work_ = ops_.now();
  WindowedBlocks::expect(sweep, passes, chunk);
}

step::BlockSlots::Place CountedSlots::use(std::size_t block, step::BlockUse how) {
  // With equal blocks, the first ones of a forward pass represent all: the number of uses matters,
  // not which block.
  const auto first = static_cast<std::size_t>(chunk_.blocks.first),
             count = static_cast<std::size_t>(chunk_.blocks.count);
  used_ = sweep_ == step::Sweep::kForward ? first + position_++ % count : block;
  place_ = WindowedBlocks::use(used_, how);
  if (completes_) place_.last = *completes_ && layers_.gradients.has_value();
  return place_;
}

Status CountedSlots::wait_for_slot(std::size_t slot) {
  const auto of_block = [&](const Fetch& fetch) { return fetch.place.block == used_; };
  while (std::any_of(queued_.begin(), queued_.end(), of_block)) {
    fetch(queued_.front());
    queued_.pop_front();
  }
  wait(std::max(filled_[slot], stored_[slot]));
  return {};
}

Status CountedSlots::begin_after_work() {
  work_ = ops_.now();
  return {};
}

Status CountedSlots::leave(std::size_t block, step::BlockWindow::Leaving what) {
  const double gradients = what.gradients ? leaving_bytes(static_cast<step::UnitKey>(block)) : 0;
  const double bytes = gradients + (what.inputs ? input_bytes_ : 0);
  const bool disk = is_on_disk() && gradients > 0;
  double& written = written_[what.slot];
  last_stored_ = stored_[what.slot] =
      ops_.begin_copy(Direction::kToHost, bytes, disk ? std::max(work_, written) : work_);
  if (disk) written = ops_.begin_disk(Direction::kToHost, gradients, last_stored_);
  return {};
}

Status CountedSlots::bring(step::BlockWindow::Place place) {
  const double from = std::max(work_, held_);
  queued_.push_back({place, from, std::max(from, last_stored_)});
  return {};
}

// The first blocks of a forward sweep represent all, although a rank may have more or less of other
// blocks.
Bytes CountedSlots::own_bytes(std::size_t block) const {
  if (layers_.own.empty()) return {};
  if (sweep_ != step::Sweep::kForward) return layers_.own[block];
  const Bytes all = std::accumulate(layers_.own.begin(), layers_.own.end(), Bytes());
  return Bytes((all.count() + layers_.own.size() - 1) / layers_.own.size());
}

void CountedSlots::fetch(const Fetch& fetch) {
  const step::BlockWindow::Place& place = fetch.place;
  double& filled = filled_[place.slot];
  const double weights =
      place.weights ? static_cast<double>(layers_.blocks[place.block].bytes.count()) : 0;
  const double gradients = place.gradients ? gradient_bytes(place.block) : 0;
  const double first = weights + (place.inputs ? input_bytes_ : 0);
  double from = fetch.from, gradients_from = fetch.gradients_from;
  // The buffer may have other inputs, which are being stored.
  if (place.inputs && weights_.architecture.pipeline.stages > 1)
    from = std::max(from, stored_[place.slot]);
  if (is_on_disk() && !layers_.ranks && weights + gradients > 0) {
    // Gradients are read into the window from which the previous ones were written. Data that was
    // read is copied to the buffer when the buffer is used.
    const double read =
        ops_.begin_disk(Direction::kToDevice, weights + gradients,
                        gradients > 0 ? std::max(from, written_[place.slot]) : from);
    from = gradients_from = std::max({read, work_, gradients_from});
  }
  if (first > 0) filled = load(first, from, own_bytes(place.block));
  read_ahead_ = layers_.ranks && is_on_disk();
  if (place.gradients) filled = ops_.begin_copy(Direction::kToDevice, gradients, gradients_from);
}

step::TableTurns::Turn CountedSlots::use_table(step::Table table, step::BlockUse how) {
  end_reads();
  queued_.clear();
  turn_table_ = table;
  turn_ = WindowedBlocks::use_table(table, how);
  if (completes_) turn_.last = *completes_ && turn_.adds;
  return turn_;
}

Status CountedSlots::begin_turn(step::Table table, const step::TableTurns::Turn& turn) {
  turn_ = turn;  // for gradients_of()
  const double weights =
      turn.weights ? static_cast<double>(turn_bytes(table, turn.unit).count()) : 0;
  const double gradients = turn.gradients ? bytes(gradients_of(step::key_of(table))) : 0;
  double here = last_stored_;
  if (weights + gradients > 0) {
    // Pieces are copied while others are read.
    const double read =
        layers_.tables_in_files ? ops_.begin_disk(Direction::kToDevice, weights, ops_.now()) : 0;
    here = std::max(read, load(weights + gradients, std::max({work_, held_, last_stored_}),
                               layers_.own_turns[step::index_of(table)]));
  }
  for (std::size_t slot = 0; slot < kBlockSlots; ++slot)
    here = std::max({here, filled_[slot], stored_[slot]});
  wait(here);
  return {};
}

Bytes CountedSlots::turn_bytes(step::Table table, std::size_t unit) const {
  if (layers_.ranks) return layers_.turns[step::index_of(table)];
  const spec::FlatUnit& loaded = layers_.tables.units[unit];
  if (!layers_.tables_in_files) return spec::tensor_bytes(loaded.elements, dtype());
  Bytes all;
  for (const spec::Parameter& parameter : loaded.parameters)
    all += spec::tensor_bytes(parameter.elements(), dtype());
  return all;
}

Status CountedSlots::end_turn(const step::TableTurns::Turn& turn) {
  if (turn.adds) {
    last_stored_ = held_ =
        ops_.begin_copy(Direction::kToHost, leaving_bytes(step::key_of(turn_table_)), work_);
  }
  // Equal blocks were skipped.
  if (sweep_ == step::Sweep::kForward && passes_ > 1 && position_ > 0) {
    position_ = 0;
    announce(sweep_, passes_, chunk_);
  }
  return {};
}

void CountedSlots::drain() {
  queued_.clear();
  end_reads();
  if (!layers_.ranks) ops_.wait_until(ops_.copied());
}

CountedTensor CountedSlots::gradients_of(step::UnitKey unit) const {
  if (unit < 0) return T::outside({layers_.tables.units[turn_.unit].elements}, *layers_.gradients);
  const Bytes weights = layers_.blocks[static_cast<std::size_t>(unit)].bytes;
  return T::outside({static_cast<std::int64_t>(weights.count()) / element_bytes(dtype())},
                    *layers_.gradients);
}

double CountedSlots::leaving_bytes(step::UnitKey unit) const {
  const auto own = own_.find(unit);
  if ((unit < 0 ? turn_.last : place_.last) && own != own_.end())
    return static_cast<double>(own->second.count());
  return layers_.gradients ? bytes(gradients_of(unit)) : 0;
}

double CountedSlots::gradient_bytes(std::size_t block) const {
  return layers_.gradients ? bytes(gradients_of(static_cast<step::UnitKey>(block))) : 0;
}

}  // namespace neap::plan
