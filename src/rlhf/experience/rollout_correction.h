// Correction for the difference between rollout and trainer: importance weights, rejection, and
// metrics of the difference.
//
// Both have the same weights but different kernels: decoding reads a cache and rounds differently,
// and in other systems it is a different engine. Formulas (step/training/rollout_terms.h) and metric names
// are verl's.
//
// Threads   stateless functions.
// Failure   Error for an invalid configuration.
#pragma once

#include <ATen/core/Tensor.h>

#include "rlhf/trainer/trainer.h"
#include "spec/types/rollout_correction.h"

namespace neap::rlhf {

/// Log-probabilities of the sampled tokens of a whole batch, (B, T): when they were sampled, and in
/// the trainer's pass.
struct RolloutDivergence {
  at::Tensor rollout, trainer, mask;
};

/// Adds rollout_corr/kl and the other metrics of the difference.
void describe_divergence(const RolloutDivergence& d, Metrics& metrics);
/// (B, T) without gradient, 0 outside the mask. Undefined if the configuration uses no weights.
[[nodiscard]] at::Tensor rollout_weights(const spec::RolloutCorrectionConfig& config,
                                         const RolloutDivergence& d, Metrics& metrics);
/// The mask without the tokens that the rules reject.
[[nodiscard]] at::Tensor accepted_mask(const spec::RolloutCorrectionConfig& config,
                                       const RolloutDivergence& d, Metrics& metrics);

/// The geometric mean of each sequence's weights (B, T), repeated for each of its tokens.
[[nodiscard]] at::Tensor geometric_means(const at::Tensor& weights, const at::Tensor& mask);

}  // namespace neap::rlhf
