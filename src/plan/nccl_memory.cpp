#include "plan/nccl_memory.h"

#include <algorithm>
#include <cstdlib>

#include "plan/network.h"

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

Bytes nccl_bytes(const spec::Mesh& mesh, const spec::Mesh& generation, const NcclSettings& settings,
                 bool passes_keys) {
  if (mesh.ranks() <= 1) return {};
  const std::int64_t peers = 6 * settings.peer_channels, ring = 12 * settings.channels;
  // The first initialization of the process, then the first collective.
  Bytes sum = mebibytes(180 + peers) + mebibytes(186 + ring);
  for (std::size_t i = 0; i < spec::kGroups; ++i)
    if (mesh.has_own_group(static_cast<spec::Axis>(i))) sum += mebibytes(6 + peers + ring);
  constexpr spec::Axis kTensor = spec::Axis::kTensor;
  const bool divided = generation.size(kTensor) != mesh.size(kTensor);
  if (divided && generation.has_own_group(kTensor)) sum += mebibytes(6 + peers + ring);
  // The first send or receive, and connections of each group that sends: stages, ranks that pass keys and values round,
  // and parts that give each other others to generate with.
  std::int64_t senders = passes_keys ? 1 : 0;
  if (mesh.size(spec::Axis::kPipe) > 1) ++senders;
  if (divided && mesh.size(kTensor) > 1) ++senders;
  if (senders > 0) sum += mebibytes(62 + senders * 12 * settings.peer_channels);
  return sum;
}

bool uses_copy_lane(const spec::Job& job) {
  const spec::Mesh mesh = job.mesh();
  const std::int64_t together = mesh.size(spec::Axis::kShards);
  if (job.task == spec::Task::kEval || together == 1) return false;
  if (job.parallel.transport != "auto") return job.parallel.transport == "copy_engine";
  // More ranks have smaller slots, and were no faster than NCCL.
  if (together > 2) return false;
  const Network network = network_of(job, {});
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank)
    if (!on_one_machine(network, mesh.line(rank, spec::Axis::kShards))) return false;
  return true;
}

Bytes peers_bytes(const spec::Job& job, const NcclSettings& settings) {
  return nccl_bytes(job.mesh(), job.generation_mesh(), settings, job.context_shard().ring) +
         (uses_copy_lane(job) ? kCopyLaneBytes : Bytes());
}

}  // namespace neap::plan
