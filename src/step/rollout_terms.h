// What bypass mode makes of the rollout's log-probabilities in each micro-batch: the tokens that count, and
// their weights, from the policy as it is now. Nothing here has a gradient.
//
// Tensors are (B, T) float32: B sequences, T response tokens.
#pragma once

#include <vector>

#include "spec/rollout_correction.h"
#include "step/losses.h"

namespace neap::step {

/// Current log-probability less the rollout's, 0 outside of the mask, clamped.
template <class Ops, class T = typename Ops::Tensor>
T rollout_log_ratio(Ops& ops, const T& log_probs, const T& rollout, const T& mask) {
  const T r = ops.subtract(log_probs, rollout);
  ops.multiply_(r, mask);
  return ops.clamp(r, -kLogRatioLimit, kLogRatioLimit);
}

/// A measure of each token's divergence, 0 outside of the mask.
template <class Ops, class T = typename Ops::Tensor>
T divergence_of_tokens(Ops& ops, const T& r, const T& mask, int estimator) {
  T k = ops.negate(r);
  if (estimator == 2) {
    ops.multiply_(k, k);
    ops.scale_(k, 0.5);
  } else if (estimator == 3) {
    const T grown = ops.exp(r);
    ops.add_(grown, -1.0);
    ops.add_(k, grown);
  }
  ops.multiply_(k, mask);
  return k;
}

/// The mask without what the rules reject.
template <class Ops, class T = typename Ops::Tensor>
T accepted_tokens(Ops& ops, const T& r, const T& mask,
                  const std::vector<spec::RejectionRule>& rules) {
  const T kept = ops.clone(mask);
  for (const spec::RejectionRule& rule : rules) {
    T value = divergence_of_tokens(ops, r, mask, rule.estimator);
    using Scope = spec::RejectionRule::Scope;
    if (rule.scope == Scope::kSequenceMax) {
      value = ops.max_last(value);
    } else if (rule.scope != Scope::kToken) {
      value = ops.view(ops.sum_last(value), {-1, 1});
      if (rule.scope == Scope::kSequenceMean)
        ops.divide_(value, ops.view(ops.clamp(ops.sum_last(mask), 1, kMostTokens), {-1, 1}));
    }
    ops.multiply_(kept, ops.at_most(value, rule.high));
    ops.multiply_(kept, ops.at_most(ops.negate(value), -rule.low));
  }
  return kept;
}

/// Importance weights of the tokens, 0 outside of the mask.
template <class Ops, class T = typename Ops::Tensor>
T importance_weights(Ops& ops, const T& r, const T& mask, const spec::ImportanceWeights& rule) {
  T w;
  if (rule.sequences) {
    const T sum = ops.view(ops.sum_last(r), {-1, 1});
    w = ops.multiply(mask, ops.exp(ops.clamp(sum, -kLogRatioLimit, kLogRatioLimit)));
  } else {
    w = ops.multiply(mask, ops.exp(r));
  }
  if (!rule.low) return ops.clamp(w, 0, rule.high);
  const T inside = ops.at_most(w, rule.high);
  ops.multiply_(inside, ops.at_most(ops.negate(w), -*rule.low));
  ops.multiply_(w, inside);
  return w;
}

template <class T>
struct RolloutTerms {
  T mask;     // tokens that count
  T weights;  // undefined: none
};
/// What becomes of `mask` and which weights there are at the current log-probabilities.
template <class Ops, class T = typename Ops::Tensor>
RolloutTerms<T> rollout_terms(Ops& ops, const T& log_probs, const T& rollout, const T& mask,
                              const spec::BypassTerms& terms) {
  const T r = rollout_log_ratio(ops, log_probs, rollout, mask);
  RolloutTerms<T> out{accepted_tokens(ops, r, mask, terms.rejections), T()};
  if (!terms.weights) return out;
  out.weights = importance_weights(ops, r, mask, *terms.weights);
  if (!terms.normalize) return out;
  // Over tokens, or over sequences that have some.
  double mean = 0;
  if (terms.weights->sequences) {
    const T lengths = ops.sum_last(mask);
    const T rows = ops.sum_last(out.weights);
    ops.divide_(rows, ops.clamp(lengths, 1, kMostTokens));
    mean = ops.read(ops.sum(rows)) / (ops.read(ops.sum(ops.above(lengths, 0.0))) + 1e-8);
  } else {
    mean = masked_mean(ops, out.weights, mask, ops.read(ops.sum(mask)));
  }
  ops.divide_(out.weights, mean + 1e-8);
  return out;
}

}  // namespace neap::step
