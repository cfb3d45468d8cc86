#include "plan/counting/counted_training.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::CountingOps;

CountedTensor state_tensor(const spec::StateTensor& t) {
  return CountedTensor::outside({t.elements}, t.dtype);
}

}  // namespace

CountedTraining::CountedTraining(CountingOps& ops, const ModelRole& role, step::Dtype dtype,
                                 const spec::Phase& phase, CountedBlocks* blocks)
    : ops_(ops),
      role_(role),
      dtype_(dtype),
      blocks_(blocks),
      optimizer_(optimizer_of(role, dtype)) {
  const spec::ModelStorage& storage = phase.storage;
  if (storage.streams_states()) {
    parts_.emplace(update_parts(role_, dtype_, storage));
    const step::UpdateParts largest = largest_parts(role_, dtype_, storage);
    slot_bytes_ = largest.slot_bytes();
    states_ = storage.states();
    if (spec::is_staged(states_)) window_bytes_ = largest.window_bytes();
  }
  const std::vector<bool> rests = on_host(role_, storage);
  make_units(phase, rests);
  make_pieces(phase);
  const bool leave = std::any_of(rests.begin(), rests.end(), [](bool rest) { return rest; });
  if ((role_.ranks.ranks == 1 && !leave) || gradients_) return;
  peers_.emplace(ops_, role_.ranks, units_, pieces_, element_bytes(optimizer_.gradients));
}

step::GradientSink<CountedTensor>* CountedTraining::sink() {
  if (gradients_) return &*gradients_;
  return peers_ ? &*peers_ : nullptr;
}

void CountedTraining::make_units(const spec::Phase& phase, const std::vector<bool>& rests) {
  const auto flat = [](std::int64_t n, step::Dtype d) { return CountedTensor::outside({n}, d); };
  for (spec::FlatUnit& unit : trained_units(role_)) {
    const std::int64_t n = unit.elements;
    units_.push_back(step::make_trained_unit(optimizer_, std::move(unit), std::ssize(units_),
                                             flat(n, dtype_), flat(n, optimizer_.gradients),
                                             &state_tensor));
    units_.back().on_host = rests[units_.size() - 1];
    // Their norms are computed in backward.
    if ((units_.back().on_host || phase.storage.streams_gradients()) &&
        phase.part == spec::TrainPart::kUpdate)
      blocks_->keep_norms(step::key_of(units_.back().unit, role_.shape), {});
  }
  if (blocks_ != nullptr) blocks_->read_norms(ops_);
}

// Pieces of the rank with the most elements. Pieces of other ranks may take more memory in the
// update, but none takes more than its whole unit.
void CountedTraining::make_pieces(const spec::Phase& phase) {
  const spec::StatePlacement placement = placement_of(role_, dtype_);
  if (!placement.sliced()) {
    pieces_ = units_;
    return;
  }
  const std::int64_t rank = role_.rank.value_or(placement.fullest_rank());
  for (const spec::Piece& piece : placement.pieces(rank)) {
    pieces_.push_back(
        step::make_piece(ops_, units_[piece.unit], piece, placement.state(piece), &state_tensor));
    if (phase.storage.streams_gradients()) pieces_.back().on_host = true;
  }
  if (phase.storage.streams_gradients()) host_gradients(phase.storage.gradients);
  if (phase.storage.shards_gradients) take_gradients();
  if (blocks_ != nullptr) keep_own_gradients(placement, rank);
  if (role_.rank) return;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (placement.counts(u)[static_cast<std::size_t>(rank)] != units_[u].unit.elements)
      of_others_.push_back(units_[u]);
  for (step::TrainedUnit<T>& unit : of_others_)
    unit.on_host = unit.on_host || phase.storage.streams_gradients();
}

// For offloaded units.
void CountedTraining::keep_own_gradients(const spec::StatePlacement& placement, std::int64_t rank) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].on_host)
      blocks_->counted()->keep_own(
          step::key_of(units_[u].unit, role_.shape),
          spec::tensor_bytes(placement.slices().range(u, rank).count, optimizer_.gradients));
}

// For offloaded pieces. Norms of other ranks' pieces take no more memory than those of whole units.
void CountedTraining::host_gradients(spec::Home home) {
  std::vector<CountedGradients::Piece> pieces;
  for (const step::TrainedUnit<T>& piece : pieces_)
    pieces.push_back({step::gradient_slot(piece.unit, role_.shape, role_.head), piece.gradients});
  hosted_gradients_.emplace(ops_, std::move(pieces), home, [this](std::size_t p) {
    const step::TrainedUnit<T>& piece = pieces_[p];
    const spec::TensorShard& shard = role_.shape.tensor;
    blocks_->keep_norms(step::key_of(piece.unit, role_.shape),
                        step::part_norms(ops_, piece.unit, piece.first, piece.gradients, shard));
    if (role_.rank) return;
    const T& whole = units_[static_cast<std::size_t>(piece.index)].gradients;
    ops_.aside([&] { (void)step::part_norms(ops_, piece.unit, 0, whole, shard); });
  });
}

void CountedTraining::take_gradients() {
  std::vector<step::GradientSlots<CountingOps>::Unit> units;
  for (const step::TrainedUnit<T>& unit : units_) units.push_back({unit.unit, unit.gradients});
  gradients_.emplace(
      ops_, std::move(units), pieces_, role_.shape, role_.head,
      step::GradientSlots<CountingOps>::Sums{
          [this](std::size_t, const T& gradients) { return begin_sums(bytes(gradients)); },
          [this](std::int64_t begun) {
            Sums& sums = sums_[static_cast<std::size_t>(begun)];
            ops_.wait_for_peers(sums.ended, std::exchange(sums.sent, 0));
          }},
      hosted_gradients_ ? &*hosted_gradients_ : nullptr);
}

// On a GPU they follow the started gathers. Without overlap they are waited for.
std::int64_t CountedTraining::begin_sums(double gradients) {
  Sums& sums = sums_.emplace_back();
  sums.sent = step::gathered_bytes(role_.ranks.shards(), gradients);
  const double seconds = ops_.peer_seconds(sums.sent, 1, spec::Axis::kShards);
  const bool behind_gathers = ops_.profile().cuda && role_.ranks.slices_weights();
  lane_ = blocks_ != nullptr && behind_gathers ? blocks_->counted()->begin_behind_gathers(seconds)
                                               : std::max(lane_, ops_.now()) + seconds;
  sums.ended = lane_;
  if (!ops_.profile().cuda || !step::sums_overlap_backward(ops_, role_.shape))
    ops_.wait_for_peers(lane_, std::exchange(sums.sent, 0));
  return std::ssize(sums_) - 1;
}

void CountedTraining::reduce_gradients() {
  if (peers_) peers_->finish();
  double slice = 0;
  for (const step::TrainedUnit<T>& piece : pieces_) slice += bytes(piece.gradients);
  sum_over_replicas(ops_, role_.ranks, slice);
}

void CountedTraining::for_each_part(const Visit& visit) {
  if (parts_) {
    stream_parts(visit);
  } else {
    for (const step::TrainedUnit<T>& piece : pieces_) visit(piece);
  }
  for (const step::TrainedUnit<T>& piece : of_others_) ops_.aside([&] { visit(piece); });
}

void CountedTraining::stream_parts(const Visit& visit) {
  const std::vector<step::UpdatePart>& list = parts_->list();
  CountedParts counted(ops_);
  // Rounds are equal once every window has been used.
  const std::int64_t lasting = spec::is_staged(states_) ? step::kUpdateWindows : 1;
  for (std::size_t i = 0; i < list.size();) {
    std::size_t alike = i;
    while (alike < list.size() && list[alike].piece == list[i].piece &&
           list[alike].count == list[i].count)
      ++alike;
    ops_.repeat(
        static_cast<std::int64_t>(alike - i),
        [&](std::int64_t) { visit_part(counted, list[i], visit); }, lasting);
    i = alike;
  }
}

void CountedTraining::visit_part(CountedParts& counted, const step::UpdatePart& part,
                                 const Visit& visit) {
  const step::PartLayout layout = parts_->layout(part);
  const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
  const CountedParts::Disk disk{bytes(layout.disk_read()), bytes(layout.disk_written())};
  counted.visit(bytes(layout.fetched()), bytes(layout.stored()), disk, [&] {
    visit(step::part_of(ops_, pieces_[part.piece], part, layout, [](const step::PartTensor& t) {
      return T::outside({t.elements}, t.dtype);
    }));
  });
}

void CountedTraining::gather_weights() {
  const spec::StatePlacement placement = placement_of(role_, dtype_);
  if (!placement.sliced() || (role_.ranks.slices_weights() && role_.trains_blocks())) return;
  for (const step::TrainedUnit<T>& unit : units_)
    if (!unit.on_host) gather_at_once(ops_, role_.ranks, bytes(unit.weights));
  if (parts_) gather_hosted(placement.fullest_rank());
}

void CountedTraining::gather_hosted(std::int64_t fullest) {
  CountedParts counted(ops_);
  for (const step::GatheredPart& part : parts_->gathered(slot_bytes_, window_bytes_)) {
    const double all = bytes_of(part.elements(), dtype_);
    const double own = bytes_of(part.own(role_.rank.value_or(fullest)).count, dtype_);
    const CountedParts::Disk disk =
        part.on_disk ? CountedParts::Disk{own, all - own} : CountedParts::Disk{};
    counted.visit(own, all - own, disk, [&] { gather_at_once(ops_, role_.ranks, all); });
  }
}

}  // namespace neap::plan
