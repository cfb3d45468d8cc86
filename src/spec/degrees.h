// The keys that say how ranks divide a job, and which a plan may choose: "auto". They are those of [parallel], and the
// stages of ZeRO of single models.
//
// One table: who enumerates, reads, writes or prints degrees goes through it.
//
// Threads   values and functions without state.   Failure   none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/json.h"
#include "spec/job.h"

namespace neap::spec {

struct DegreeKey {
  enum class Kind : std::uint8_t {
    kAxis,           ///< of the mesh: divides the ranks
    kZeroStage,      ///< of ranks that have the same part of the model
    kShards,         ///< of these those that slice it together; 0: all
    kRows,           ///< a switch of ranks along the axis "tensor"
    kRing,           ///< a switch of ranks along the axis "context": "all_gather" or "p2p"
    kChunks,         ///< of each stage
    kSchedule,       ///< a switch of stages: "1f1b" or "zero_bubble"
    kModelZeroStage  ///< of a model alone; where it is not open, 0 in place of its value
  };
  std::string_view name;  ///< for tables
  std::string_view path;
  Kind kind = Kind::kAxis;
  bool AutomaticDegrees::*automatic = nullptr;
  std::int64_t (*value)(const ParallelConfig&) = nullptr;
  ModelId model = ModelId::kActor;  ///< of kModelZeroStage; kActor: the main one
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

/// A value of each key, in their order.
using Degrees = std::array<std::int64_t, kDegreeKeys.size()>;

/// Whether tables have a key: those of single models only where they are open.
[[nodiscard]] inline bool is_shown(const DegreeKey& key, const AutomaticDegrees& open) {
  return key.kind != DegreeKey::Kind::kModelZeroStage || open.*key.automatic;
}
/// Marks the keys that stay open in a job whose keys `table` has read. sequence_parallel is open with the size, unless
/// it is set. Replicas of slices need more memory than slices over all, chunks and zero bubble more than 1F1B: who asks
/// for what nobody has set gets none.
void open_degrees(OpenDegrees open, const ConfigTable& table, ParallelConfig& parallel);
/// All that the open keys of a job may be together on its ranks, the least divided first: sizes whose product divides
/// the ranks, stages of ZeRO where several ranks have the same part, and of stages up to four chunks or zero bubble.
/// Those that the job has stay.
[[nodiscard]] std::vector<Degrees> possible_degrees(const Job& job);
/// "parallel.tensor_model_parallel_size=2" of the keys that are open in the job.
[[nodiscard]] std::vector<std::string> assignments(const Job& job, const Degrees& degrees);
/// What a file has of a key; nullopt: nothing that is one of its values.
[[nodiscard]] std::optional<std::int64_t> degree_of(const DegreeKey& key, const Json& value);
/// Ranks along the axis "data".
[[nodiscard]] std::int64_t data_ranks(const Job& job, const Degrees& degrees);

}  // namespace neap::spec
