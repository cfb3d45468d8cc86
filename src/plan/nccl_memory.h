// What talking to other ranks takes of each GPU, which the arena knows nothing of.
//
// NCCL's was measured with NCCL 2.28 on two H100s of one host, multicast off; the formula fits four settings within a MiB.
//
// Threads   functions without state.   Failure   none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "spec/job.h"
#include "spec/mesh.h"

namespace neap::plan {

/// Of NCCL, for a communicator.
struct NcclSettings {
  std::int64_t peer_channels = 32;  ///< between two ranks
  std::int64_t channels = 24;       ///< of a ring
  /// NCCL_MAX_CTAS limits both.
  [[nodiscard]] static NcclSettings of_process();
};

/// Of a model.
struct ModelRanks {
  spec::Mesh mesh;
  bool passes_keys = false;  ///< round the ranks that divide sequences
};

/// Of a communicator of all ranks and those of the groups of a job's models (spec/rank_groups.h), the one that generates
/// first, whose collectives go through rings. Connections to send through are of stages, of parts that give each other
/// others to generate with and of ranks that divide sequences and pass keys and values round. Zero of one rank.
[[nodiscard]] Bytes nccl_bytes(const std::vector<ModelRanks>& models, const spec::Mesh& generation,
                               const NcclSettings& settings);
[[nodiscard]] Bytes nccl_bytes(const spec::Job& job, const NcclSettings& settings);

/// GPUs that have the same part of a model are to write into each other's memory (parallel/copy_lane.h).
[[nodiscard]] bool uses_copy_lane(const spec::Job& job, spec::ModelId model);
/// Slots of ranks that write into each other's memory, however many (parallel/copy_lane.h), for each group of them.
constexpr Bytes kCopyLaneBytes = 64_MiB;

/// All of a rank: of the job's meshes and transport. Zero of one rank.
[[nodiscard]] Bytes peers_bytes(const spec::Job& job, const NcclSettings& settings);

}  // namespace neap::plan
