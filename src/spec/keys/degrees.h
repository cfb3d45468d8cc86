// The parallel sizes of a job that a plan may choose ("auto"): the keys of [parallel], and the ZeRO
// stages of single models.
//
// All code that enumerates, reads, writes or prints parallel sizes uses this table.
//
// Threads   values and stateless functions.
// Failure   none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/json.h"
#include "spec/job/job.h"

namespace neap::spec {

struct DegreeKey {
  enum class Kind : std::uint8_t {
    kAxis,           ///< size of a mesh axis
    kZeroStage,      ///< ZeRO stage of data-parallel ranks
    kShards,         ///< ranks per shard group; 0: all data-parallel ranks
    kRows,           ///< sequence parallelism, for ranks along the axis "tensor"
    kRing,           ///< "all_gather" or "p2p" (ring attention), for ranks along the axis "context"
    kChunks,         ///< chunks per pipeline stage
    kSchedule,       ///< schedule of pipeline stages: "1f1b" or "zero_bubble"
    kModelZeroStage  ///< ZeRO stage of one model; 0 unless the key is open
  };
  std::string_view name;  ///< column name in tables
  std::string_view path;
  Kind kind = Kind::kAxis;
  bool AutomaticDegrees::*automatic = nullptr;
  std::int64_t (*value)(const ParallelConfig&) = nullptr;
  ModelId model = ModelId::kActor;  ///< for kModelZeroStage; kActor: the main model
};
inline constexpr std::array kDegreeKeys = {
    DegreeKey{"pipe", "parallel.pipeline_model_parallel_size", DegreeKey::Kind::kAxis,
              &AutomaticDegrees::pipeline,
              [](const ParallelConfig& p) { return p.pipeline_model_parallel_size; }},
    DegreeKey{"tensor", "parallel.tensor_model_parallel_size", DegreeKey::Kind::kAxis,
              &AutomaticDegrees::tensor,
              [](const ParallelConfig& p) { return p.tensor_model_parallel_size; }},
    DegreeKey{"sequence_parallel", "parallel.sequence_parallel", DegreeKey::Kind::kRows,
              &AutomaticDegrees::rows,
              [](const ParallelConfig& p) { return std::int64_t{p.sequence_parallel}; }},
    DegreeKey{"context", "parallel.context_parallel_size", DegreeKey::Kind::kAxis,
              &AutomaticDegrees::context,
              [](const ParallelConfig& p) { return p.context_parallel_size; }},
    DegreeKey{"ring_attention", "parallel.cp_comm_type", DegreeKey::Kind::kRing,
              &AutomaticDegrees::ring,
              [](const ParallelConfig& p) { return std::int64_t{p.cp_comm_type == "p2p"}; }},
    DegreeKey{"zero", "parallel.zero_stage", DegreeKey::Kind::kZeroStage,
              &AutomaticDegrees::zero_stage, [](const ParallelConfig& p) { return p.zero_stage; }},
    DegreeKey{"zero_shard_size", "parallel.zero_shard_size", DegreeKey::Kind::kShards,
              &AutomaticDegrees::zero_shards,
              [](const ParallelConfig& p) { return p.zero_shard_size; }},
    DegreeKey{"chunks", "parallel.virtual_pipeline_model_parallel_size", DegreeKey::Kind::kChunks,
              &AutomaticDegrees::chunks,
              [](const ParallelConfig& p) { return p.virtual_pipeline_model_parallel_size; }},
    DegreeKey{"zero_bubble", "parallel.pipeline_parallel_schedule", DegreeKey::Kind::kSchedule,
              &AutomaticDegrees::schedule,
              [](const ParallelConfig& p) { return std::int64_t{p.zero_bubble()}; }},
    DegreeKey{"actor zero", "actor_rollout_ref.actor.zero_stage", DegreeKey::Kind::kModelZeroStage,
              &AutomaticDegrees::actor_zero, nullptr, ModelId::kActor},
    DegreeKey{"reference zero", "actor_rollout_ref.ref.zero_stage",
              DegreeKey::Kind::kModelZeroStage, &AutomaticDegrees::reference_zero, nullptr,
              ModelId::kReference},
    DegreeKey{"critic zero", "critic.zero_stage", DegreeKey::Kind::kModelZeroStage,
              &AutomaticDegrees::critic_zero, nullptr, ModelId::kCritic},
    DegreeKey{"reward zero", "reward_model.zero_stage", DegreeKey::Kind::kModelZeroStage,
              &AutomaticDegrees::reward_zero, nullptr, ModelId::kReward}};

/// The value of each key, in the order of kDegreeKeys.
using Degrees = std::array<std::int64_t, kDegreeKeys.size()>;

/// Whether tables show a key. Keys of single models are shown only if they are open.
[[nodiscard]] inline bool is_shown(const DegreeKey& key, const AutomaticDegrees& open) {
  return key.kind != DegreeKey::Kind::kModelZeroStage || open.*key.automatic;
}
/// Marks the keys that stay open, in a job whose keys `table` has read. sequence_parallel is open
/// with the tensor-parallel size, unless it is set. Shard groups, chunks and zero bubble cost
/// memory, so kUnset does not open them.
void open_degrees(OpenDegrees open, const ConfigTable& table, ParallelConfig& parallel);
/// All combinations of the open keys that are valid on the job's ranks, least sharded first. The
/// product of sizes divides the ranks, ZeRO needs several data-parallel ranks, and stages get up to
/// four chunks or zero bubble. Keys that are not open keep their values.
[[nodiscard]] std::vector<Degrees> possible_degrees(const Job& job);
/// "parallel.tensor_model_parallel_size=2" for each open key.
[[nodiscard]] std::vector<std::string> assignments(const Job& job, const Degrees& degrees);
/// Converts a key's value in a file to a number; nullopt if it is not valid.
[[nodiscard]] std::optional<std::int64_t> degree_of(const DegreeKey& key, const Json& value);
/// The data-parallel size.
[[nodiscard]] std::int64_t data_ranks(const Job& job, const Degrees& degrees);

}  // namespace neap::spec
