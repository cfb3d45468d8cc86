// The groups of ranks that the models of a job talk in.
//
// A group is the ranks along an axis of a mesh. Those of one rank and of all are no groups of their own; axes with the same
// ranks share one, whichever model they are of. Every rank makes them in this order.
//
// Threads   functions without state.   Failure   none.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "spec/mesh.h"

namespace neap::spec {

struct RankGroup {
  bool divides_model = false;  ///< along the axis tensor, of training or of a generation
  AxisSpan span{};
  friend auto operator<=>(const RankGroup&, const RankGroup&) = default;
};
[[nodiscard]] inline RankGroup group_along(const Mesh& mesh, Axis axis) {
  return {axis == Axis::kTensor, mesh.span(axis)};
}
/// Neither one rank nor all.
[[nodiscard]] inline bool is_made(const RankGroup& group, std::int64_t ranks) {
  return group.span.size > 1 && group.span.size < ranks;
}

/// Of models with these meshes over the same ranks, the one that generates first, and of the axis tensor of
/// `generation`, each once.
[[nodiscard]] std::vector<RankGroup> groups_of(const std::vector<Mesh>& models,
                                               const Mesh& generation);

}  // namespace neap::spec
