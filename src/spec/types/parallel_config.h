// Parallel settings of a job: [parallel], and the keys of its models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace neap::spec {

/// The sizes that a plan chooses (spec/keys/degrees.h). Until then the job has their defaults.
struct AutomaticDegrees {
  bool zero_stage = false, zero_shards = false, tensor = false, rows = false, context = false,
       ring = false, pipeline = false, chunks = false, schedule = false;
  // The ZeRO stage of each model.
  bool actor_zero = false, reference_zero = false, critic_zero = false, reward_zero = false;
  [[nodiscard]] bool any() const {
    return zero_stage || zero_shards || tensor || rows || context || ring || pipeline || chunks ||
           schedule || actor_zero || reference_zero || critic_zero || reward_zero;
  }
};
/// Which parallel sizes stay open when a job is read.
enum class OpenDegrees : std::uint8_t {
  kNone,  ///< none: "auto" means the default
  kAuto,  ///< keys that are "auto", and keys that depend on them
  kUnset  ///< also keys that the user did not set
};
/// Settings of [parallel].
struct ParallelConfig {
  std::int64_t zero_stage = 0;                  ///< for trained models (spec/job/placement.h)
  std::int64_t zero_shard_size = 0;             ///< ranks per shard group; 0: all
  std::int64_t tensor_model_parallel_size = 1;  ///< of every model (spec/model/tensor_parallel.h)
  bool sequence_parallel = false;  ///< the tensor-parallel ranks also shard hidden states by rows
  std::int64_t context_parallel_size = 1;  ///< of every sequence (spec/ranks/context_parallel.h)
  /// all_gather or p2p: how context-parallel ranks exchange keys and values.
  std::string cp_comm_type = "all_gather";
  std::int64_t pipeline_model_parallel_size = 1;  ///< stages of every model (spec/model/pipeline.h)
  std::int64_t virtual_pipeline_model_parallel_size = 1;  ///< chunks per stage
  std::string pipeline_parallel_schedule =
      "1f1b";  ///< or zero_bubble (step/pipeline/pipeline_schedule.h)
  /// Blocks of each part; empty: spec/model/pipeline.h decides.
  std::vector<double> pipeline_model_parallel_layout;
  std::string transport = "auto";  ///< or p2p, or nccl: transport of overlapped communication
  AutomaticDegrees automatic{};
  // For plans: bytes per second of a rank within a machine, and to other machines; zero: the
  // device's (plan/results/network.h).
  Bytes intra_node_bandwidth{0}, inter_node_bandwidth{0};
  [[nodiscard]] bool zero_bubble() const { return pipeline_parallel_schedule == "zero_bubble"; }
};

/// Parallel settings of one model, if its own keys set them.
struct ModelPlacement {
  std::int64_t zero_stage = -1;                   ///< -1: as parallel.zero_stage
  std::int64_t zero_shard_size = 0;               ///< 0: as parallel.zero_shard_size
  std::int64_t tensor_model_parallel_size = 0;    ///< 0: as parallel.tensor_model_parallel_size
  std::optional<bool> sequence_parallel{};        ///< unset: as parallel.sequence_parallel
  std::int64_t context_parallel_size = 0;         ///< 0: as parallel.context_parallel_size
  std::string cp_comm_type{};                     ///< empty: as parallel.cp_comm_type
  std::int64_t pipeline_model_parallel_size = 0;  ///< 0: as parallel.pipeline_model_parallel_size
  /// Empty: as parallel.pipeline_model_parallel_layout, if that has the same number of stages.
  std::vector<double> pipeline_model_parallel_layout{};
  [[nodiscard]] bool passes_keys() const { return cp_comm_type == "p2p"; }
  friend bool operator==(const ModelPlacement&, const ModelPlacement&) = default;
};

}  // namespace neap::spec
