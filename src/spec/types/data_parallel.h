// The data-parallel ranks of a model, which all hold the same tensor-parallel shard, and how ZeRO
// shards among them. Either all of them form one shard group, or several groups are replicas
// (hybrid sharding).
//
// Threads   values.
#pragma once

#include <cstdint>

namespace neap::spec {

struct DataParallel {
  std::int64_t ranks = 1;
  std::int64_t zero_stage = 0;
  std::int64_t replicas = 1;  ///< number of ranks with the same ZeRO shards
  /// Ranks per shard group.
  [[nodiscard]] std::int64_t shards() const { return ranks / replicas; }
  [[nodiscard]] bool slices_states() const { return zero_stage > 0 && shards() > 1; }
  [[nodiscard]] bool slices_gradients() const { return zero_stage > 1 && shards() > 1; }
  [[nodiscard]] bool slices_weights() const { return zero_stage > 2 && shards() > 1; }
};

}  // namespace neap::spec
