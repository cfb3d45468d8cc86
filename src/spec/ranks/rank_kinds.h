// Groups the ranks of a job that have the same plan: those with the same stage of every model.
// Their numbers are contiguous.
//
// Threads   stateless functions.
// Failure   none.
// Cost      proportional to the stages of all models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/types/mesh.h"

namespace neap::spec {

/// Ranks [first, first + count).
struct RankKind {
  std::int64_t first = 0, count = 1;
  friend bool operator==(const RankKind&, const RankKind&) = default;
};
/// For models with these meshes over the same ranks, in ascending order.
[[nodiscard]] std::vector<RankKind> rank_kinds(const std::vector<Mesh>& models);
/// Whether each kind is one stage of all models.
[[nodiscard]] bool are_stages(const std::vector<RankKind>& kinds, const std::vector<Mesh>& models);
/// The kind that a rank belongs to.
[[nodiscard]] std::size_t kind_of(const std::vector<RankKind>& kinds, std::int64_t rank);

}  // namespace neap::spec
