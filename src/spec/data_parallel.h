// The ranks that have the same part of a model, and what of it they divide (ZeRO).
//
// Threads   values.
#pragma once

#include <cstdint>

namespace neap::spec {

struct DataParallel {
  std::int64_t ranks = 1;
  std::int64_t zero_stage = 0;
  [[nodiscard]] bool slices_states() const { return zero_stage > 0 && ranks > 1; }
  [[nodiscard]] bool slices_gradients() const { return zero_stage > 1 && ranks > 1; }
  [[nodiscard]] bool slices_weights() const { return zero_stage > 2 && ranks > 1; }
};

}  // namespace neap::spec
