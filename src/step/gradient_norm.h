// The norm of a model's gradients, from norms of tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "step/trained_unit.h"
#include "step/units.h"

namespace neap::step {

/// Norms of a unit's gradients, one for each of its tiles.
template <class Ops, class T = typename Ops::Tensor>
std::vector<double> tile_norms(Ops& ops, const T& gradients) {
  const std::int64_t elements = gradients.size(0);
  const T norms = ops.empty({(elements + kTile - 1) / kTile}, Dtype::kFloat32);
  for (std::int64_t first = 0; first < elements; first += kTile) {
    const T part = ops.narrow(gradients, 0, first, std::min(kTile, elements - first));
    const T norm = ops.norm_of(ops.convert(part, Dtype::kFloat32));
    ops.copy_(ops.narrow(norms, 0, first / kTile, 1), norm);
  }
  return ops.read_all(norms);
}

/// Norms of the tiles of `pieces`, one after another. Those of units that rest on the host are the
/// `source`'s, taken when their last gradients left.
template <class Ops, class T = typename Ops::Tensor>
std::vector<double> piece_norms(Ops& ops, const std::vector<TrainedUnit<T>>& pieces,
                                const BlockSource<T>* source = nullptr) {
  std::vector<double> out;
  for (const TrainedUnit<T>& piece : pieces) {
    const std::vector<double> norms =
        piece.on_host ? source->norms(key_of(piece.unit)) : tile_norms(ops, piece.gradients);
    out.insert(out.end(), norms.begin(), norms.end());
  }
  return out;
}

/// Norm of all gradients together, from those of all their tiles in order, added up on the host: the same
/// bits wherever a unit is cut between tiles, and when a run is resumed.
inline double joint_norm(const std::vector<double>& tiles) {
  double squares = 0;
  for (const double norm : tiles) squares += norm * norm;
  return std::sqrt(squares);
}

}  // namespace neap::step
