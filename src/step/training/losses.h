// Losses of one micro-batch with explicit gradients. Without autograd, plan and run allocate the
// same tensors.
//
// Every tensor is (B, T) float32 unless stated otherwise: B sequences, T response tokens. `weights`
// is the weight of each token's loss. The losses of a mini-batch's micro-batches add up to that of
// the mini-batch.
#pragma once

#include <algorithm>

#include "spec/job/job.h"
#include "spec/types/loss_kinds.h"
#include "step/operations/loss_numbers.h"
#include "step/operations/operations.h"

namespace neap::step {

/// The limit of |log ratio|: e^20 is finite in every type in use.
constexpr double kLogRatioLimit = 20;
constexpr double kKlLimit = 10;
/// More than any sequence has.
constexpr double kMostTokens = 1e30;

/// The divisors of a loss: counts of the whole mini-batch.
struct LossScale {
  double tokens = 0;     ///< tokens in the mask
  double sequences = 0;  ///< all sequences, with or without tokens in the mask
  double horizon = 0;    ///< divisor of seq-mean-token-sum-norm
};

/// The weight of each token under `mode`; sum(loss * weights) is the aggregated loss.
template <class Ops, class T = typename Ops::Tensor>
T loss_weights(Ops& ops, const T& mask, spec::LossAggregation mode, const LossScale& scale) {
  const double tokens = std::max(scale.tokens, 1.0);
  const double sequences = std::max(scale.sequences, 1.0);
  const T weights = ops.clone(mask);
  switch (mode) {
    case spec::LossAggregation::kTokenMean:
      ops.divide_(weights, tokens);
      break;
    case spec::LossAggregation::kTokenSum:
      break;
    case spec::LossAggregation::kSequenceMeanTokenSum:
      ops.divide_(weights, sequences);
      break;
    case spec::LossAggregation::kSequenceMeanTokenMean: {
      const T counts = ops.sum_last(mask);  // (B,)
      ops.add_(counts, 1e-8);
      ops.divide_(weights, ops.view(counts, {-1, 1}));
      ops.divide_(weights, sequences);
      break;
    }
    case spec::LossAggregation::kSequenceMeanTokenSumNorm:
      ops.divide_(weights, sequences * std::max(scale.horizon, 1.0));
      break;
  }
  return weights;
}

/// A KL estimate at delta = log p - log p_ref.
template <class Ops, class T = typename Ops::Tensor>
T kl_value(Ops& ops, const T& delta, spec::KlEstimator kind) {
  switch (kind) {
    case spec::KlEstimator::kK1:
      return ops.clone(delta);
    case spec::KlEstimator::kAbs:
      return ops.absolute(delta);
    case spec::KlEstimator::kK2: {
      const T value = ops.multiply(delta, delta);
      ops.scale_(value, 0.5);
      return value;
    }
    case spec::KlEstimator::kK3: {
      const T x = ops.clamp(ops.negate(delta), -kLogRatioLimit, kLogRatioLimit);
      const T value = ops.exp(x);
      ops.subtract_(value, x);
      ops.add_(value, -1.0);
      return ops.clamp(value, -kKlLimit, kKlLimit);
    }
  }
  return {};
}
/// Its derivative with respect to delta.
template <class Ops, class T = typename Ops::Tensor>
T kl_slope(Ops& ops, const T& delta, spec::KlEstimator kind) {
  switch (kind) {
    case spec::KlEstimator::kK1:
      return ops.ones_like(delta);
    case spec::KlEstimator::kAbs:
      return ops.sign(delta);
    case spec::KlEstimator::kK2:
      return ops.clone(delta);
    case spec::KlEstimator::kK3: {
      // d (e^x - x - 1) / d delta with x = -delta; zero if either clamp is active.
      const T x = ops.negate(delta);
      const T held = ops.clamp(x, -kLogRatioLimit, kLogRatioLimit);
      const T slope = ops.exp(held);
      const T value = ops.subtract(slope, held);
      ops.add_(slope, -1.0);
      ops.scale_(slope, -1);
      ops.multiply_(slope, ops.equal(x, held));
      ops.multiply_(slope, ops.at_most(value, 1 + kKlLimit));
      return slope;
    }
  }
  return {};
}

template <class T>
struct ValueGradient {
  T d_values;
  LossValue<T> loss, clip_fraction;
};
/// Half of the larger squared error: of the value, or of the value clipped around the old one.
template <class Ops, class T = typename Ops::Tensor>
ValueGradient<T> value_loss(Ops& ops, const T& values, const T& returns, const T& old_values,
                            const LossMask<T>& mask, const T& weights, double cliprange) {
  const T low = ops.clone(old_values);
  ops.add_(low, -cliprange);
  const T high = ops.clone(old_values);
  ops.add_(high, cliprange);
  const T near = ops.minimum(ops.maximum(values, low), high);
  const T error = ops.subtract(values, returns);
  const T plain = ops.multiply(error, error);
  ops.subtract_(near, returns);
  ops.multiply_(near, near);
  const T& clipped = near;
  ValueGradient<T> out;
  out.clip_fraction = mask.mean(ops.above(clipped, plain));
  out.loss = {weighed(ops.maximum(plain, clipped), weights), 0.5};
  // If the clipped error is larger, the value is outside the range and has no gradient.
  out.d_values = ops.multiply(error, weights);
  ops.multiply_(out.d_values, ops.at_least(plain, clipped));
  return out;
}

}  // namespace neap::step
