// Correction between rollout and trainer: importance weights, rejection, and how far both are apart.
//
// Both have the same weights, but not the same kernels: decoding reads a cache, rounds elsewhere,
// and in other systems is another engine. verl's formulas (step/rollout_terms.h) and metric names.
//
// Threads   free functions without state.   Failure   Error for a configuration that is wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include "rlhf/trainer.h"
#include "spec/rollout_correction.h"

namespace neap::rlhf {

/// Of a whole batch, (B, T): log-probabilities of the sampled tokens when they were sampled and under
/// the trainer's pass over them.
struct RolloutDivergence {
  at::Tensor rollout, trainer, mask;
};

/// rollout_corr/kl and the other measures of the distance.
void describe_divergence(const RolloutDivergence& d, Metrics& metrics);
/// (B, T) without gradient, 0 outside the mask; undefined where the configuration weighs nothing.
[[nodiscard]] at::Tensor rollout_weights(const spec::RolloutCorrectionConfig& config,
                                         const RolloutDivergence& d, Metrics& metrics);
/// The mask without what the rules reject.
[[nodiscard]] at::Tensor accepted_mask(const spec::RolloutCorrectionConfig& config,
                                       const RolloutDivergence& d, Metrics& metrics);

/// Each sequence's geometric mean of weights (B, T), on each of its tokens.
[[nodiscard]] at::Tensor geometric_means(const at::Tensor& weights, const at::Tensor& mask);

}  // namespace neap::rlhf
