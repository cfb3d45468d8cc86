#include "spec/ranks/rank_groups.h"

#include <algorithm>
#include <cstddef>

namespace neap::spec {

std::vector<RankGroup> groups_of(const std::vector<Mesh>& models, const Mesh& generation) {
  std::vector<RankGroup> out;
  const auto add = [&](const Mesh& mesh, Axis axis) {
    const RankGroup group = group_along(mesh, axis);
    if (is_made(group, mesh.ranks()) && std::find(out.begin(), out.end(), group) == out.end())
      out.push_back(group);
  };
  for (const Mesh& mesh : models)
    for (std::size_t i = 0; i < kGroups; ++i) add(mesh, static_cast<Axis>(i));
  add(generation, Axis::kTensor);
  return out;
}

}  // namespace neap::spec
