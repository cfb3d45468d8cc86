// Terms computed from the rollout's log-probabilities: the tokens that count, and their weights.
// They are computed for a whole batch before its updates (rlhf/experience/rollout_correction.h), or in bypass
// mode for each micro-batch with the current policy. They have no gradient.
//
// Tensors are (B, T): B sequences, T response tokens.
#pragma once

#include <vector>

#include "spec/types/rollout_correction.h"
#include "step/training/losses.h"

namespace neap::step {

/// Log-probability minus the rollout's, 0 outside the mask.
template <class Ops, class T = typename Ops::Tensor>
T rollout_log_ratio(Ops& ops, const T& log_probs, const T& rollout, const T& mask) {
  const T r = ops.subtract(log_probs, rollout);
  ops.multiply_(r, mask);
  return r;
}
/// Clamped to a range in which exp is finite.
template <class Ops, class T = typename Ops::Tensor>
T held_log_ratio(Ops& ops, const T& r) {
  return ops.clamp(r, -kLogRatioLimit, kLogRatioLimit);
}

/// A divergence estimate of each token, 0 outside the mask.
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

/// The mask without the tokens that the rules reject.
template <class Ops, class T = typename Ops::Tensor>
T accepted_tokens(Ops& ops, const T& r, const T& mask,
                  const std::vector<spec::RejectionRule>& rules) {
  const T kept = ops.clone(mask);
  if (rules.empty()) return kept;
  const T held = held_log_ratio(ops, r);
  for (const spec::RejectionRule& rule : rules) {
    T value = divergence_of_tokens(ops, held, mask, rule.estimator);
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

/// The probability ratios of tokens; or of whole sequences, repeated for each token. 0 outside the
/// mask.
template <class Ops, class T = typename Ops::Tensor>
T probability_ratios(Ops& ops, const T& r, const T& mask, const spec::ImportanceWeights& rule) {
  const T log = rule.sequences ? ops.view(ops.sum_last(r), {-1, 1}) : r;
  return ops.multiply(mask, ops.exp(held_log_ratio(ops, log)));
}
/// The weights that the rule derives from the ratios.
template <class Ops, class T = typename Ops::Tensor>
T bounded_weights(Ops& ops, T w, const spec::ImportanceWeights& rule) {
  if (!rule.low) return ops.clamp(w, 0, rule.high);
  const T inside = ops.at_most(w, rule.high);
  ops.multiply_(inside, ops.at_most(ops.negate(w), -*rule.low));
  ops.multiply_(w, inside);
  return w;
}

/// Divides weights by their mean over tokens, or over sequences with tokens. Returns the mean.
template <class Ops, class T = typename Ops::Tensor>
double normalize_weights(Ops& ops, const T& w, const T& mask, const spec::ImportanceWeights& rule) {
  double mean = 0;
  if (rule.sequences) {
    const T lengths = ops.sum_last(mask);
    const T rows = ops.sum_last(w);
    ops.divide_(rows, ops.clamp(lengths, 1, kMostTokens));
    mean = ops.read(ops.sum(rows)) / (ops.read(ops.sum(ops.above(lengths, 0.0))) + 1e-8);
  } else {
    mean = ops.read(reduce(ops, {w, mask})) / (ops.read(ops.sum(mask)) + 1e-8);
  }
  ops.divide_(w, mean + 1e-8);
  return mean;
}

template <class T>
struct RolloutTerms {
  T mask;     // tokens that count
  T weights;  // undefined: no weights
};
/// The mask and weights at the current log-probabilities.
template <class Ops, class T = typename Ops::Tensor>
RolloutTerms<T> rollout_terms(Ops& ops, const T& log_probs, const T& rollout, const T& mask,
                              const spec::BypassTerms& terms) {
  const T r = rollout_log_ratio(ops, log_probs, rollout, mask);
  RolloutTerms<T> out{accepted_tokens(ops, r, mask, terms.rejections), T()};
  if (!terms.weights) return out;
  out.weights =
      bounded_weights(ops, probability_ratios(ops, r, mask, *terms.weights), *terms.weights);
  if (terms.normalize) (void)normalize_weights(ops, out.weights, mask, *terms.weights);
  return out;
}

}  // namespace neap::step
