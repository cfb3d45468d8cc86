#include "spec/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace neap::spec {
namespace {

std::string name_of(const FlatUnit& unit, const StateTensor& tensor) {
  const std::string& owner = tensor.parameter < 0
                                 ? unit.name
                                 : unit.parameters[static_cast<std::size_t>(tensor.parameter)].name;
  return owner + "." + tensor.name;
}

}  // namespace

bool is_elementwise(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW || kind == OptimizerKind::kSgd;
}

StatePlacement::StatePlacement(const OptimizerSpec& optimizer, std::vector<FlatUnit> units,
                               const DataParallel& ranks)
    : optimizer_(optimizer), units_(std::move(units)), ranks_(ranks) {
  if (!sliced()) return;
  cuts_.resize(units_.size());
  if (is_elementwise(optimizer_.kind)) {
    cut_units();
  } else {
    deal_units();
  }
}

// Between aligned elements: kernels give the same bits wherever a unit is cut there. The last rank has
// the rest, so it has most of every unit.
void StatePlacement::cut_units() {
  fullest_ = ranks_.ranks - 1;
  for (std::size_t u = 0; u < units_.size(); ++u)
    cuts_[u] = {units_[u].elements / kParameterAlignment / ranks_.ranks * kParameterAlignment,
                fullest_};
}

// The largest first, each to the rank that has least so far.
void StatePlacement::deal_units() {
  std::vector<std::size_t> order(units_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<Bytes> bytes;
  for (const FlatUnit& unit : units_) bytes.push_back(optimizer_.state(unit).bytes());
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<Bytes> sums(static_cast<std::size_t>(ranks_.ranks));
  for (const std::size_t u : order) {
    const auto least = std::min_element(sums.begin(), sums.end());
    *least += bytes[u];
    cuts_[u] = {0, least - sums.begin()};
  }
  fullest_ = std::max_element(sums.begin(), sums.end()) - sums.begin();
}

OwnedRange StatePlacement::range(std::size_t unit, std::int64_t rank) const {
  const UnitCut& cut = cuts_[unit];
  OwnedRange out{rank, rank * cut.even, cut.even};
  if (rank != cut.rest_rank) return out;
  if (cut.even == 0) out.first = 0;
  out.count = units_[unit].elements - out.first;
  return out;
}

std::vector<Piece> StatePlacement::pieces(std::int64_t rank) const {
  std::vector<Piece> out;
  Bytes offset;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!sliced()) {
      out.push_back({u, 0, units_[u].elements, u, Bytes()});
      continue;
    }
    const OwnedRange mine = range(u, rank);
    if (mine.count == 0) continue;
    out.push_back({u, mine.first, mine.count, 0, offset});
    offset += state(out.back()).bytes();
  }
  return out;
}

UnitState StatePlacement::state(const Piece& piece) const {
  const FlatUnit& unit = units_[piece.unit];
  if (piece.count == unit.elements) return optimizer_.state(unit);
  FlatUnit cut = unit;
  cut.elements = piece.count;
  return optimizer_.state(cut);
}

std::vector<StatePart> StatePlacement::parts() const {
  std::vector<StatePart> out;
  if (sliced()) {
    out.push_back({std::string(kSlicePart), Bytes()});
  } else {
    for (const FlatUnit& unit : units_) out.push_back({unit.name, Bytes()});
  }
  for (const Piece& piece : pieces(fullest_)) out[piece.part].bytes += state(piece).bytes();
  // A part of no bytes would have no address: SGD without momentum keeps nothing.
  for (StatePart& part : out) part.bytes = std::max(part.bytes, kStateAlignment);
  return out;
}

std::vector<WholeState> StatePlacement::states() const {
  std::vector<WholeState> out;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitState state = optimizer_.state(units_[u]);
    for (std::size_t i = 0; i < state.tensors().size(); ++i) {
      const StateTensor& tensor = state.tensors()[i];
      out.push_back({name_of(units_[u], tensor), u, i, tensor.elements, tensor.dtype,
                     tensor.parameter == StateTensor::kWholeUnit});
    }
  }
  return out;
}

std::vector<OwnedRange> StatePlacement::owners(const WholeState& state) const {
  if (!sliced()) return {{0, 0, state.elements}};
  if (!state.flat) return {{cuts_[state.unit].rest_rank, 0, state.elements}};
  std::vector<OwnedRange> out;
  for (std::int64_t rank = 0; rank < ranks_.ranks; ++rank)
    if (const OwnedRange mine = range(state.unit, rank); mine.count > 0) out.push_back(mine);
  return out;
}

}  // namespace neap::spec
