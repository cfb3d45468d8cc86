// The groups of ranks that a job's models communicate in.
//
// A group consists of the ranks along an axis of a mesh. A single rank and all ranks need no group
// of their own. Axes with the same ranks share a group, even across models. Every rank creates the
// groups in this order.
//
// Threads   stateless functions.
// Failure   none.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "spec/types/mesh.h"

namespace neap::spec {

struct RankGroup {
  bool divides_model = false;  ///< along the axis "tensor", in training or in rollouts
  AxisSpan span{};
  friend auto operator<=>(const RankGroup&, const RankGroup&) = default;
};
[[nodiscard]] inline RankGroup group_along(const Mesh& mesh, Axis axis) {
  return {axis == Axis::kTensor, mesh.span(axis)};
}
/// Whether it needs a communicator: it is neither one rank nor all.
[[nodiscard]] inline bool is_made(const RankGroup& group, std::int64_t ranks) {
  return group.span.size > 1 && group.span.size < ranks;
}

/// The groups of these models' meshes and the tensor axis of `generation`, each once. The model
/// that generates comes first.
[[nodiscard]] std::vector<RankGroup> groups_of(const std::vector<Mesh>& models,
                                               const Mesh& generation);

}  // namespace neap::spec
