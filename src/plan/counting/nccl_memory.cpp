#include "plan/counting/nccl_memory.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "plan/results/network.h"
#include "spec/ranks/rank_groups.h"

namespace neap::plan {
namespace {

Bytes mebibytes(std::int64_t n) {
  return static_cast<std::uint64_t>(n) * 1_MiB;
}

}  // namespace

NcclSettings NcclSettings::of_process() {
  NcclSettings out;
  if (const char* value = std::getenv("NCCL_MAX_CTAS"); value != nullptr) {
    if (const long most = std::strtol(value, nullptr, 10); most > 0) {
      out.peer_channels = std::min<std::int64_t>(out.peer_channels, most);
      out.channels = std::min<std::int64_t>(out.channels, most);
    }
  }
  return out;
}

Bytes nccl_bytes(const std::vector<ModelRanks>& models, const spec::Mesh& generation,
                 const NcclSettings& settings) {
  const spec::Mesh& main = models.front().mesh;
  if (main.ranks() <= 1) return {};
  const std::int64_t peers = 6 * settings.peer_channels, ring = 12 * settings.channels;
  // The first initialisation of the process, then the first collective.
  Bytes sum = mebibytes(180 + peers) + mebibytes(186 + ring);
  std::vector<spec::Mesh> meshes;
  meshes.reserve(models.size());
  for (const ModelRanks& model : models) meshes.push_back(model.mesh);
  const std::size_t groups = spec::groups_of(meshes, generation).size();
  sum += mebibytes(6 + peers + ring) * groups;
  // The first send or receive, then the connections of each group that sends: stages, ring
  // attention, and exchanges of rollout shards.
  constexpr spec::Axis kTensor = spec::Axis::kTensor;
  std::set<spec::RankGroup> senders;
  for (const auto& [mesh, passes_keys] : models) {
    if (passes_keys && mesh.size(spec::Axis::kContext) > 1)
      senders.insert(spec::group_along(mesh, spec::Axis::kContext));
    if (mesh.size(spec::Axis::kPipe) > 1)
      senders.insert(spec::group_along(mesh, spec::Axis::kPipe));
  }
  if (generation.size(kTensor) != main.size(kTensor) && main.size(kTensor) > 1)
    senders.insert(spec::group_along(main, kTensor));
  if (!senders.empty()) sum += mebibytes(62 + std::ssize(senders) * 12 * settings.peer_channels);
  return sum;
}

Bytes nccl_bytes(const spec::Job& job, const NcclSettings& settings) {
  std::vector<ModelRanks> models;
  for (const spec::ModelId model : job.models())
    models.push_back({job.mesh(model), job.placement(model).passes_keys()});
  return nccl_bytes(models, job.generation_mesh(), settings);
}

bool uses_copy_lane(const spec::Job& job, spec::ModelId model) {
  const spec::Mesh mesh = job.mesh(model);
  const std::int64_t together = mesh.size(spec::Axis::kShards);
  if (job.task == spec::Task::kEval || together == 1) return false;
  if (job.parallel.transport != "auto") return job.parallel.transport == "p2p";
  // With more ranks buffers are smaller, and it was no faster than NCCL.
  if (together > 2) return false;
  const Network network = network_of(job, {});
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank)
    if (!on_one_machine(network, mesh.line(rank, spec::Axis::kShards))) return false;
  return true;
}

Bytes peers_bytes(const spec::Job& job, const NcclSettings& settings) {
  std::set<spec::RankGroup> lanes;
  for (const spec::ModelId model : job.models())
    if (uses_copy_lane(job, model))
      lanes.insert(spec::group_along(job.mesh(model), spec::Axis::kShards));
  return nccl_bytes(job, settings) + kCopyLaneBytes * lanes.size();
}

}  // namespace neap::plan
