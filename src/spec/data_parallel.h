// The ranks that have the same part of a model, and what of it they divide (ZeRO): all of them together, or as replicas
// of so many that slice it.
//
// Threads   values.
#pragma once

#include <cstdint>

namespace neap::spec {

struct DataParallel {
  std::int64_t ranks = 1;
  std::int64_t zero_stage = 0;
  std::int64_t replicas = 1;  ///< ranks that have the same slices
  /// Ranks that slice the part together.
  [[nodiscard]] std::int64_t shards() const { return ranks / replicas; }
  [[nodiscard]] bool slices_states() const { return zero_stage > 0 && shards() > 1; }
  [[nodiscard]] bool slices_gradients() const { return zero_stage > 1 && shards() > 1; }
  [[nodiscard]] bool slices_weights() const { return zero_stage > 2 && shards() > 1; }
};

}  // namespace neap::spec
