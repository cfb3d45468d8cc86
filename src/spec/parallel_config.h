// What ranks divide, as a job's file says it: [parallel], and the keys of its models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace neap::spec {

/// Which of these a plan chooses (spec/degrees.h); until it has, the job has their defaults.
struct AutomaticDegrees {
  bool zero_stage = false, zero_shards = false, tensor = false, rows = false, context = false,
       ring = false, pipeline = false, chunks = false, schedule = false;
  // The stage of ZeRO of each model.
  bool actor_zero = false, reference_zero = false, critic_zero = false, reward_zero = false;
  [[nodiscard]] bool any() const {
    return zero_stage || zero_shards || tensor || rows || context || ring || pipeline || chunks ||
           schedule || actor_zero || reference_zero || critic_zero || reward_zero;
  }
};
/// Of a job that is read, the degrees that stay open.
enum class OpenDegrees : std::uint8_t {
  kNone,  ///< "auto" is the default
  kAuto,  ///< those that are "auto", and what follows from them
  kUnset  ///< those that nobody set, too
};
/// What ranks divide besides batches.
struct ParallelConfig {
  std::int64_t zero_stage = 0;                    ///< of trained models (spec/placement.h)
  std::int64_t zero_shard_size = 0;               ///< copies that slice together; 0: all
  std::int64_t tensor_model_parallel_size = 1;    ///< of every model (spec/tensor_parallel.h)
  bool sequence_parallel = false;                 ///< those ranks divide hidden states by rows, too
  std::int64_t context_parallel_size = 1;         ///< of every sequence (spec/context_parallel.h)
  std::string cp_comm_type = "all_gather";        ///< or p2p: how those ranks get keys and values
  std::int64_t pipeline_model_parallel_size = 1;  ///< stages of every model (spec/pipeline.h)
  std::int64_t virtual_pipeline_model_parallel_size = 1;  ///< chunks of each stage
  std::string pipeline_parallel_schedule = "1f1b";  ///< or zero_bubble (step/pipeline_schedule.h)
  /// Blocks of each part; empty: as spec/pipeline.h divides them.
  std::vector<double> pipeline_model_parallel_layout;
  std::string transport = "auto";  ///< or p2p, or nccl: of what goes on behind computation
  AutomaticDegrees automatic{};
  // For plans: bytes a second of a rank, within a machine and to others; zero: the device's (plan/network.h).
  Bytes intra_node_bandwidth{0}, inter_node_bandwidth{0};
  [[nodiscard]] bool zero_bubble() const { return pipeline_parallel_schedule == "zero_bubble"; }
};

/// What ranks divide of one model, where its own keys say so.
struct ModelPlacement {
  std::int64_t zero_stage = -1;                   ///< -1: as parallel.zero_stage
  std::int64_t zero_shard_size = 0;               ///< 0: as parallel.zero_shard_size
  std::int64_t tensor_model_parallel_size = 0;    ///< 0: as parallel.tensor_model_parallel_size
  std::optional<bool> sequence_parallel{};        ///< nothing: as parallel.sequence_parallel
  std::int64_t context_parallel_size = 0;         ///< 0: as parallel.context_parallel_size
  std::string cp_comm_type{};                     ///< empty: as parallel.cp_comm_type
  std::int64_t pipeline_model_parallel_size = 0;  ///< 0: as parallel.pipeline_model_parallel_size
  /// Empty: as parallel.pipeline_model_parallel_layout, if it is of as many stages.
  std::vector<double> pipeline_model_parallel_layout{};
  [[nodiscard]] bool passes_keys() const { return cp_comm_type == "p2p"; }
  friend bool operator==(const ModelPlacement&, const ModelPlacement&) = default;
};

}  // namespace neap::spec
