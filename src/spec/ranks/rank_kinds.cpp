#include "spec/ranks/rank_kinds.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace neap::spec {

std::vector<RankKind> rank_kinds(const std::vector<Mesh>& models) {
  const std::int64_t ranks = models.front().ranks();
  std::set<std::int64_t> firsts;
  for (const Mesh& mesh : models) {
    const std::int64_t stages = mesh.size(Axis::kPipe);
    for (std::int64_t stage = 0; stage < stages; ++stage) firsts.insert(stage * (ranks / stages));
  }
  std::vector<RankKind> out;
  for (const std::int64_t first : firsts) {
    if (!out.empty()) out.back().count = first - out.back().first;
    out.push_back({first, ranks - first});
  }
  return out;
}

bool are_stages(const std::vector<RankKind>& kinds, const std::vector<Mesh>& models) {
  return std::all_of(models.begin(), models.end(),
                     [&](const Mesh& mesh) { return mesh.size(Axis::kPipe) == std::ssize(kinds); });
}

std::size_t kind_of(const std::vector<RankKind>& kinds, std::int64_t rank) {
  std::size_t kind = kinds.size() - 1;
  while (kinds[kind].first > rank) --kind;
  return kind;
}

}  // namespace neap::spec
