// Device memory that communication takes outside the arena.
//
// NCCL's was measured with NCCL 2.28 on two H100s of one machine, with multicast off. The formula
// is exact to a MiB for four settings.
//
// Threads   stateless functions.
// Failure   none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "spec/job/job.h"
#include "spec/types/mesh.h"

namespace neap::plan {

/// NCCL's settings per communicator.
struct NcclSettings {
  std::int64_t peer_channels = 32;  ///< between two ranks
  std::int64_t channels = 24;       ///< per ring
  /// NCCL_MAX_CTAS limits both.
  [[nodiscard]] static NcclSettings of_process();
};

/// The ranks of a model.
struct ModelRanks {
  spec::Mesh mesh;
  bool passes_keys = false;  ///< context-parallel ranks use ring attention
};

/// NCCL's memory for a communicator of all ranks and for the groups of a job's models
/// (spec/ranks/rank_groups.h). The model that generates comes first. Collectives use rings.
/// Point-to-point connections are counted for pipeline stages, ring attention, and exchanges of
/// rollout shards. Zero for one rank.
[[nodiscard]] Bytes nccl_bytes(const std::vector<ModelRanks>& models, const spec::Mesh& generation,
                               const NcclSettings& settings);
[[nodiscard]] Bytes nccl_bytes(const spec::Job& job, const NcclSettings& settings);

/// Whether data-parallel GPUs of a model are to write into each other's memory
/// (parallel/copy_lane.h).
[[nodiscard]] bool uses_copy_lane(const spec::Job& job, spec::ModelId model);
/// Buffers of a group of ranks that write into each other's memory, for any number of ranks
/// (parallel/copy_lane.h).
constexpr Bytes kCopyLaneBytes = 64_MiB;

/// All communication memory of a rank, for the job's meshes and transport. Zero for one rank.
[[nodiscard]] Bytes peers_bytes(const spec::Job& job, const NcclSettings& settings);

}  // namespace neap::plan
