// The actor's losses of one micro-batch with explicit gradients (losses.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "step/training/losses.h"

namespace neap::step {

/// The maximum log ratio of a sequence (GSPO).
constexpr double kSequenceLogRatioLimit = 10;
/// Less than any covariance.
constexpr double kNever = -1e30;

template <class T>
struct PolicyStatistics {
  LossValue<T> loss{};           ///< this micro-batch's share of the mini-batch's
  LossValue<T> clip_fraction{};  ///< masked share of tokens at which the clipped side was taken
  LossValue<T> clip_fraction_lower{};  ///< and at which the dual clip was
  LossValue<T> kl{};                   ///< masked mean of old - new
};
template <class T>
struct PolicyGradient {
  T d_log_probs;
  PolicyStatistics<T> statistics;
};

/// Inputs of the actor's loss for a micro-batch.
template <class T>
struct PolicyInputs {
  T old_log_probs, log_probs, advantages;
  LossMask<T> mask;
  T weights;
  T noise{};  ///< in (0, 1], for a loss that samples tokens (spec::draws_tokens)
};

/// The two terms of PPO's loss, which is the larger of them.
template <class T>
struct ClipSides {
  T plain, clipped;
};
template <class Ops, class T = typename Ops::Tensor>
ClipSides<T> clip_sides(Ops& ops, const T& cost, const T& ratio, const spec::ActorConfig& config) {
  T plain = ops.multiply(cost, ratio);
  T clipped =
      ops.multiply(cost, ops.clamp(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high));
  return {std::move(plain), std::move(clipped)};
}

/// PPO's clipped loss with dual clip, and its gradient with respect to log_probs.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> vanilla_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                      const spec::ActorConfig& config) {
  const T difference = ops.subtract(in.log_probs, in.old_log_probs);
  const T delta = ops.clamp(difference, -kLogRatioLimit, kLogRatioLimit);
  const T cost = ops.negate(in.advantages);
  const auto [plain, clipped] = clip_sides(ops, cost, ops.exp(delta), config);
  const T loss = ops.maximum(plain, clipped);

  PolicyGradient<T> out;
  out.statistics.clip_fraction = in.mask.mean(ops.above(clipped, plain));
  out.statistics.kl = -in.mask.mean(delta);
  // Only the unclipped side depends on the ratio. Within the range both sides are equal; beyond it
  // the clipped side has no gradient.
  out.d_log_probs = ops.multiply(plain, in.weights);
  ops.multiply_(out.d_log_probs, ops.at_least(plain, clipped));
  if (config.clip_ratio_c > 0) {
    const T bound = ops.clone(cost);
    ops.scale_(bound, config.clip_ratio_c);
    const T over = ops.above(loss, bound);      // the dual clip would apply
    ops.multiply_(over, ops.above(cost, 0.0));  // but only for a negative advantage
    out.statistics.clip_fraction_lower = in.mask.mean(over);
    // loss = over ? bound : loss
    ops.subtract_(bound, loss);
    ops.multiply_(bound, over);
    ops.add_(loss, bound);
    ops.multiply_(out.d_log_probs, ops.at_most(over, 0.0));
  }
  out.statistics.loss = weighed(loss, in.weights);
  ops.multiply_(out.d_log_probs, ops.equal(difference, delta));
  return out;
}

/// GSPO: the ratio of each token has the value of its sequence's ratio, exp of the mean log ratio
/// (at most kSequenceLogRatioLimit), and the gradient of its own log-probability. No dual clip.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> gspo_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                   const spec::ActorConfig& config) {
  const T difference = ops.subtract(in.log_probs, in.old_log_probs);
  PolicyGradient<T> out;
  out.statistics.kl = -in.mask.mean(difference);
  const T& mask = in.mask.tokens;
  const T mean = ops.sum_last(ops.multiply(difference, mask));  // (B,)
  ops.divide_(mean, ops.clamp(ops.sum_last(mask), 1, kMostTokens));
  const T held = ops.clamp(mean, -kMostTokens, kSequenceLogRatioLimit);
  const T ratio = ops.view(ops.exp(held), {-1, 1});
  const T cost = ops.negate(in.advantages);
  const auto [plain, clipped] = clip_sides(ops, cost, ratio, config);
  out.statistics.clip_fraction = in.mask.mean(ops.above(clipped, plain));
  out.statistics.loss = weighed(ops.maximum(plain, clipped), in.weights);
  out.d_log_probs = ops.multiply(plain, in.weights);
  ops.multiply_(out.d_log_probs, ops.at_least(plain, clipped));
  ops.multiply_(out.d_log_probs, ops.view(ops.equal(mean, held), {-1, 1}));
  return out;
}

/// CISPO: -clip(ratio) A log p, where the clipped ratio has no gradient.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> cispo_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                    const spec::ActorConfig& config) {
  const T delta =
      ops.clamp(ops.subtract(in.log_probs, in.old_log_probs), -kLogRatioLimit, kLogRatioLimit);
  const T ratio = ops.exp(delta);
  const T clipped = ops.clamp(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high);
  PolicyGradient<T> out;
  out.statistics.kl = -in.mask.mean(delta);
  out.statistics.clip_fraction = 1 - in.mask.mean(ops.equal(ratio, clipped));
  ops.multiply_(clipped, in.advantages);
  out.d_log_probs = ops.multiply(clipped, in.weights);
  ops.scale_(out.d_log_probs, -1);
  out.statistics.loss = weighed(in.log_probs, out.d_log_probs);
  return out;
}

/// GPG: -A log p.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> gpg_policy_loss(Ops& ops, const PolicyInputs<T>& in) {
  PolicyGradient<T> out;
  out.statistics.kl = in.mask.mean(ops.subtract(in.old_log_probs, in.log_probs));
  out.d_log_probs = ops.multiply(in.advantages, in.weights);
  ops.scale_(out.d_log_probs, -1);
  out.statistics.loss = weighed(in.log_probs, out.d_log_probs);
  return out;
}

/// DRO: -(A log p - beta / 2 (log p - log p_old)^2).
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> dro_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                  const spec::ActorConfig& config) {
  PolicyGradient<T> out;
  const T delta = ops.subtract(in.log_probs, in.old_log_probs);
  out.statistics.kl = -in.mask.mean(delta);
  const T loss = ops.multiply(delta, delta);
  ops.scale_(loss, config.dro_beta / 2);
  ops.subtract_(loss, ops.multiply(in.advantages, in.log_probs));
  out.statistics.loss = weighed(loss, in.weights);
  out.d_log_probs = ops.clone(delta);
  ops.scale_(out.d_log_probs, config.dro_beta);
  ops.subtract_(out.d_log_probs, in.advantages);
  ops.multiply_(out.d_log_probs, in.weights);
  return out;
}

/// SAPO: -A sigmoid(tau (ratio - 1)) 4 / tau, where tau depends on the sign of A.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> sapo_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                   const spec::ActorConfig& config) {
  const T difference = ops.subtract(in.log_probs, in.old_log_probs);
  const T delta = ops.clamp(difference, -kLogRatioLimit, kLogRatioLimit);
  const T ratio = ops.exp(delta);
  PolicyGradient<T> out;
  out.statistics.kl = -in.mask.mean(delta);
  const T tau = ops.above(in.advantages, 0.0);
  ops.scale_(tau, config.tau_pos - config.tau_neg);
  ops.add_(tau, config.tau_neg);
  const T x = ops.clone(ratio);
  ops.add_(x, -1.0);
  ops.multiply_(x, tau);
  const T gate = ops.sigmoid(x);
  const T cost = ops.negate(in.advantages);
  ops.scale_(cost, 4);
  const T loss = ops.multiply(cost, gate);
  ops.divide_(loss, tau);
  out.statistics.loss = weighed(loss, in.weights);
  // tau cancels: d gate / d log p = gate (1 - gate) tau ratio.
  out.d_log_probs = ops.multiply(gate, gate);
  ops.subtract_(gate, out.d_log_probs);
  out.d_log_probs = ops.multiply(gate, cost);
  ops.multiply_(out.d_log_probs, ratio);
  ops.multiply_(out.d_log_probs, in.weights);
  ops.multiply_(out.d_log_probs, ops.equal(difference, delta));
  return out;
}

/// GMPO: the ratio of a sequence is exp of the mean of its tokens' log ratios. Each is clipped on
/// the side that makes the loss larger. The `weights` of a sequence's tokens add up to the
/// sequence's weight.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> geo_mean_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                       const spec::ActorConfig& config) {
  const T delta = ops.subtract(in.log_probs, in.old_log_probs);
  PolicyGradient<T> out;
  out.statistics.kl = -in.mask.mean(delta);
  const T held = ops.clamp(delta, -config.clip_ratio_low, config.clip_ratio_high);
  const T sign = ops.sign(in.advantages);
  {
    const T clipped = ops.equal(delta, held);
    ops.scale_(clipped, -1);
    ops.add_(clipped, 1.0);
    const T gains = ops.above(in.advantages, 0.0);
    ops.multiply_(gains, clipped);
    out.statistics.clip_fraction = in.mask.mean(gains);
    const T losses = ops.above(ops.negate(in.advantages), 0.0);
    ops.multiply_(losses, clipped);
    out.statistics.clip_fraction_lower = in.mask.mean(losses);
  }
  ops.multiply_(held, sign);
  const T plain = ops.multiply(delta, sign);
  const T moves = ops.at_least(held, plain);  // the clip is not active
  const T used = ops.minimum(plain, held);
  ops.multiply_(used, sign);
  const T& mask = in.mask.tokens;
  const T lengths = ops.sum_last(mask);  // (B,)
  ops.add_(lengths, 1e-8);
  const auto mean = [&](const T& x) {
    const T sum = ops.sum_last(ops.multiply(x, mask));
    ops.divide_(sum, lengths);
    return sum;
  };
  const T loss = ops.exp(mean(used));  // (B,): first the ratio, then the loss
  ops.multiply_(loss, mean(in.advantages));
  ops.scale_(loss, -1);
  ops.multiply_(loss, ops.sum_last(in.weights));
  out.statistics.loss = summed(loss);
  out.d_log_probs = ops.multiply(moves, mask);
  ops.multiply_(out.d_log_probs, ops.view(loss, {-1, 1}));
  ops.divide_(out.d_log_probs, ops.view(lengths, {-1, 1}));
  return out;
}

/// Covariance of advantage and log-probability per token; kNever outside the mask.
template <class Ops, class T = typename Ops::Tensor>
T covariances(Ops& ops, const PolicyInputs<T>& in, double count) {
  const T& mask = in.mask.tokens;
  const auto mean = [&](const T& x) { return ops.read(reduce(ops, {x, mask})) / (count + 1e-8); };
  const T out = ops.clone(in.advantages);
  ops.add_(out, -mean(in.advantages));
  const T log_probs = ops.clone(in.log_probs);
  ops.add_(log_probs, -mean(in.log_probs));
  ops.multiply_(out, log_probs);
  ops.multiply_(out, mask);
  const T outside = ops.clone(mask);
  ops.add_(outside, -1.0);
  ops.scale_(outside, -kNever);
  ops.add_(out, outside);
  return out;
}
/// 1 for the `ratio` x count largest elements, at least one; ties are all included.
template <class Ops, class T = typename Ops::Tensor>
T largest(Ops& ops, const T& x, double ratio, double count) {
  const auto wanted = std::max<std::int64_t>(1, static_cast<std::int64_t>(ratio * count));
  const Sorted<T> sorted = ops.sort_descending(ops.view(x, {1, -1}));
  return ops.at_least(x, ops.narrow(sorted.values, 1, wanted - 1, 1));
}

/// Clip-Cov: PPO's clip. Some tokens that are not clipped and whose covariance is within the bounds
/// are selected at random (`noise`) and get no loss.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> clip_cov_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                       const spec::ActorConfig& config) {
  const T delta = ops.subtract(in.log_probs, in.old_log_probs);
  PolicyGradient<T> out;
  out.statistics.kl = -in.mask.mean(delta);
  const T cost = ops.negate(in.advantages);
  const auto [plain, clipped] = clip_sides(ops, cost, ops.exp(delta), config);
  const T free = ops.at_least(plain, clipped);
  T kept;
  {
    const double tokens = ops.read(ops.sum(in.mask.tokens));  // decides how many are drawn
    const T covariance = covariances(ops, in, tokens);
    const T candidates = ops.multiply(in.mask.tokens, free);
    ops.multiply_(candidates, ops.above(covariance, config.clip_cov_lb));
    ops.multiply_(candidates, ops.above(ops.negate(covariance), -config.clip_cov_ub));
    kept = largest(ops, ops.multiply(in.noise, candidates), config.clip_cov_ratio, tokens);
    ops.multiply_(kept, candidates);
    ops.scale_(kept, -1);
    ops.add_(kept, 1.0);
  }
  out.statistics.clip_fraction = 1 - in.mask.mean(kept);
  const T loss = ops.maximum(plain, clipped);
  ops.multiply_(loss, kept);
  out.statistics.loss = weighed(loss, in.weights);
  out.d_log_probs = ops.multiply(plain, in.weights);
  ops.multiply_(out.d_log_probs, free);
  ops.multiply_(out.d_log_probs, kept);
  return out;
}

/// KL-Cov: -A ratio; tokens with the largest covariance also get + coefficient |log ratio|.
template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> kl_cov_policy_loss(Ops& ops, const PolicyInputs<T>& in,
                                     const spec::ActorConfig& config) {
  const T delta = ops.subtract(in.log_probs, in.old_log_probs);
  PolicyGradient<T> out;
  const T distance = ops.absolute(delta);
  out.statistics.kl = in.mask.mean(distance);
  const double tokens = ops.read(ops.sum(in.mask.tokens));  // decides how many are chosen
  const T held = largest(ops, covariances(ops, in, tokens), config.kl_cov_ratio, tokens);
  ops.scale_(held, config.ppo_kl_coef);
  const T plain = ops.exp(delta);
  ops.multiply_(plain, in.advantages);
  ops.scale_(plain, -1);
  out.d_log_probs = ops.sign(delta);
  ops.multiply_(out.d_log_probs, held);
  ops.add_(out.d_log_probs, plain);
  ops.multiply_(out.d_log_probs, in.weights);
  const T loss = ops.multiply(distance, held);
  ops.add_(loss, plain);
  out.statistics.loss = weighed(loss, in.weights);
  return out;
}

template <class Ops, class T = typename Ops::Tensor>
PolicyGradient<T> policy_loss(Ops& ops, const PolicyInputs<T>& in,
                              const spec::ActorConfig& config) {
  switch (config.loss_mode) {
    case spec::PolicyLoss::kVanilla:
      return vanilla_policy_loss(ops, in, config);
    case spec::PolicyLoss::kGspo:
      return gspo_policy_loss(ops, in, config);
    case spec::PolicyLoss::kCispo:
      return cispo_policy_loss(ops, in, config);
    case spec::PolicyLoss::kGpg:
      return gpg_policy_loss(ops, in);
    case spec::PolicyLoss::kDro:
      return dro_policy_loss(ops, in, config);
    case spec::PolicyLoss::kSapo:
      return sapo_policy_loss(ops, in, config);
    case spec::PolicyLoss::kGeoMean:
      return geo_mean_policy_loss(ops, in, config);
    case spec::PolicyLoss::kClipCov:
      return clip_cov_policy_loss(ops, in, config);
    case spec::PolicyLoss::kKlCov:
      return kl_cov_policy_loss(ops, in, config);
  }
  return {};
}

}  // namespace neap::step
