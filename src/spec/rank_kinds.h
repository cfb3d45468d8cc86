// Which ranks of a job do the same work: those that have the same stage of each model's pipeline. They are neighbours, and
// have plans of the same sizes.
//
// Threads   functions without state.   Failure   none.
// Cost      proportional to the stages of all models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/mesh.h"

namespace neap::spec {

/// Ranks [first, first + count).
struct RankKind {
  std::int64_t first = 0, count = 1;
  friend bool operator==(const RankKind&, const RankKind&) = default;
};
/// Of models with these meshes over the same ranks, ascending.
[[nodiscard]] std::vector<RankKind> rank_kinds(const std::vector<Mesh>& models);
/// Whether each of these is a stage of all models.
[[nodiscard]] bool are_stages(const std::vector<RankKind>& kinds, const std::vector<Mesh>& models);
/// The number of a rank's.
[[nodiscard]] std::size_t kind_of(const std::vector<RankKind>& kinds, std::int64_t rank);

}  // namespace neap::spec
