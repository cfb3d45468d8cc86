// From logits to the next token.
//
// The random number of a token is a function of its sequence's key and its place, so a sequence's
// text does not depend on which others share its batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace neap::rollout {

struct SamplingOptions {
  double temperature = 1.0;  ///< logits are divided by it; 0 takes the likeliest token
  double top_p = 1.0;        ///< from the likeliest tokens whose mass reaches this; 1: all
  std::int64_t top_k = -1;   ///< from this many likeliest tokens; -1 or 0: all
};

/// Tokens (B,) int64 from logits (B, V) float32, which are overwritten, and uniforms (B,) float32 in
/// [0, 1). Transient: 2 (B, V) float32; with top_p or top_k also 1 (B, V) int64.
[[nodiscard]] at::Tensor sample(at::Tensor logits, const SamplingOptions& options,
                                const at::Tensor& uniforms);

}  // namespace neap::rollout
