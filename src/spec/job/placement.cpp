#include "spec/job/placement.h"

#include <algorithm>
#include <map>
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

StatePlacement::StatePlacement(const OptimizerSpec& optimizer, std::vector<FlatUnit> units,
                               const DataParallel& ranks, std::int64_t tile)
    : optimizer_(optimizer), units_(std::move(units)), ranks_(ranks) {
  if (!sliced()) return;
  slices_ = UnitSlices(units_, ranks_.shards(), tile, is_elementwise(optimizer_.kind));
  find_fullest();
}

void StatePlacement::find_fullest() {
  std::vector<Bytes> sums(static_cast<std::size_t>(ranks_.shards()));
  for (std::size_t u = 0; u < units_.size(); ++u) {
    std::map<std::int64_t, Bytes> bytes;  // bytes by number of elements; few numbers occur
    for (std::size_t r = 0; r < sums.size(); ++r) {
      const std::int64_t count = counts(u)[r];
      if (count == 0) continue;
      const auto [known, is_new] = bytes.try_emplace(count);
      if (is_new) known->second = state({.unit = u, .count = count}).bytes();
      sums[r] += known->second;
    }
  }
  fullest_ = std::max_element(sums.begin(), sums.end()) - sums.begin();
}

OwnedRange StatePlacement::range(std::size_t unit, std::int64_t rank) const {
  const UnitSlices::Range range = slices_.range(unit, rank);
  return {rank, range.first, range.count};
}

std::vector<Piece> StatePlacement::pieces(std::int64_t rank) const {
  std::vector<Piece> out;
  Bytes offset;
  std::int64_t elements = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!sliced()) {
      out.push_back({.unit = u, .count = units_[u].elements, .part = u});
      continue;
    }
    const OwnedRange mine = range(u, rank);
    if (mine.count == 0) continue;
    out.push_back({u, mine.first, mine.count, elements, 0, offset});
    offset += state(out.back()).bytes();
    elements += mine.count;
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
  // A part needs at least one byte to have an address. SGD without momentum keeps no states.
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
                     tensor.parameter, tensor.dimension});
    }
  }
  return out;
}

std::vector<OwnedRange> StatePlacement::owners(const WholeState& state) const {
  if (!sliced()) return {{0, 0, state.elements}};
  std::vector<OwnedRange> out;
  for (std::int64_t rank = 0; rank < ranks_.shards(); ++rank)
    if (const OwnedRange mine = range(state.unit, rank); mine.count > 0) out.push_back(mine);
  // An uncut unit belongs to one rank.
  if (!state.flat()) out = {{out.front().rank, 0, state.elements}};
  return out;
}

}  // namespace neap::spec
