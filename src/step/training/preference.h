// Losses of preference pairs with explicit gradients.
//
// A batch of P pairs has 2 P sequences: all chosen, then all rejected.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "spec/job/job.h"
#include "step/training/losses.h"

namespace neap::step {

/// d (P,) for the chosen and -d for the rejected: (2, P).
template <class Ops, class T>
T of_both_sides(Ops& ops, const T& d) {
  const T out = ops.empty({2, d.size(0)}, ops.dtype(d));
  ops.copy_(ops.select(out, 0, 0), d);
  ops.copy_(ops.select(out, 0, 1), ops.negate(d));
  return out;
}

// ---- Bradley-Terry ----

template <class T>
struct PairGradient {
  T d_scores;  // (2, P)
  LossValue<T> loss;
  LossValue<T> right;   ///< pairs whose chosen score is higher
  LossValue<T> margin;  ///< sum of chosen - rejected
};
/// Bradley-Terry: -log sigmoid(chosen - rejected - margin) + center (chosen + rejected)^2, summed
/// over pairs and divided by `pairs`. scores (2, P): chosen, then rejected; margins (P,).
template <class Ops, class T = typename Ops::Tensor>
PairGradient<T> pairwise_loss(Ops& ops, const T& scores, const T& margins, double center,
                              double pairs) {
  const T chosen = ops.select(scores, 0, 0);
  const T rejected = ops.select(scores, 0, 1);
  const T difference = ops.subtract(chosen, rejected);  // (P,)
  PairGradient<T> out;
  out.right = summed(ops.above(difference, 0.0));
  out.margin = summed(difference);
  const T excess = ops.subtract(difference, margins);
  out.loss = {summed(ops.log_sigmoid(excess)), -1, pairs};
  const T d = ops.sigmoid(excess);  // d (-log sigmoid) = sigmoid - 1
  ops.add_(d, -1.0);
  ops.divide_(d, pairs);
  out.d_scores = of_both_sides(ops, d);
  if (center > 0) {
    const T sum = ops.add(chosen, rejected);
    out.loss = out.loss + LossValue<T>(weighed(sum, sum), center, pairs);
    for (const std::int64_t side : {0, 1})
      ops.add_scaled_(ops.select(out.d_scores, 0, side), sum, 2 * center / pairs);
  }
  return out;
}

// ---- DPO ----

/// Sums over pairs, except the loss. V: double or LossValue.
template <class V>
struct PreferenceStatistics {
  V loss{};                                  ///< divided by all pairs
  V chosen_reward{}, rejected_reward{};      ///< beta (log p - log p of the reference)
  V right{};                                 ///< pairs whose chosen reward is higher
  V chosen_log_prob{}, rejected_log_prob{};  ///< of whole responses
};
/// Means over `pairs`, with TRL's names.
template <class V>
[[nodiscard]] std::vector<std::pair<std::string, V>> preference_means(
    const PreferenceStatistics<V>& s, double pairs) {
  return {{"rewards/chosen", s.chosen_reward / pairs},
          {"rewards/rejected", s.rejected_reward / pairs},
          {"rewards/accuracies", s.right / pairs},
          {"rewards/margins", (s.chosen_reward - s.rejected_reward) / pairs},
          {"logps/chosen", s.chosen_log_prob / pairs},
          {"logps/rejected", s.rejected_log_prob / pairs}};
}
template <class T>
struct PreferenceGradient {
  T d_log_probs;  // (2 P, R)
  PreferenceStatistics<LossValue<T>> statistics;
};

/// The loss of each pair (P,), and its derivative with respect to h (P,). Here h is the policy's
/// gain over the reference on the chosen response, minus that on the rejected response.
template <class T>
struct PreferenceSlope {
  T loss, slope;
};
template <class Ops, class T = typename Ops::Tensor>
PreferenceSlope<T> preference_slope(Ops& ops, const T& h, const spec::DpoConfig& config) {
  const double beta = config.beta;
  PreferenceSlope<T> out;
  switch (config.loss_type) {
    case spec::PreferenceLoss::kSigmoid:
    case spec::PreferenceLoss::kSigmoidNorm:
    case spec::PreferenceLoss::kRobust: {
      // -(1 - s) log sigmoid(x) - t log sigmoid(-x), with t = s for cDPO and t = -s for the robust
      // form, which is divided by 1 - 2 s.
      const bool robust = config.loss_type == spec::PreferenceLoss::kRobust;
      const double s = config.label_smoothing;
      const double t = robust ? -s : s;
      const double scale = robust ? 1 / (1 - 2 * s) : 1;
      const T x = ops.clone(h);
      ops.scale_(x, beta);
      out.loss = ops.log_sigmoid(x);
      ops.scale_(out.loss, -(1 - s) * scale);
      ops.add_scaled_(out.loss, ops.log_sigmoid(ops.negate(x)), -t * scale);
      // Derivative: (1 - s + t) sigmoid(x) - (1 - s)
      out.slope = ops.sigmoid(x);
      ops.scale_(out.slope, (1 - s + t) * scale * beta);
      ops.add_(out.slope, -(1 - s) * scale * beta);
      break;
    }
    case spec::PreferenceLoss::kHinge: {
      const T gap = ops.clone(h);
      ops.scale_(gap, -beta);
      ops.add_(gap, 1.0);
      out.slope = ops.above(gap, 0.0);
      out.loss = ops.multiply(gap, out.slope);
      ops.scale_(out.slope, -beta);
      break;
    }
    case spec::PreferenceLoss::kIpo:
    case spec::PreferenceLoss::kIpoSum: {
      out.slope = ops.clone(h);
      ops.add_(out.slope, -0.5 / beta);
      out.loss = ops.multiply(out.slope, out.slope);
      ops.scale_(out.slope, 2);
      break;
    }
  }
  return out;
}

/// log_probs and mask are (2 P, R); `reference` (2 P,) has sums over the mask. The loss is divided
/// by `all_pairs`.
template <class Ops, class T = typename Ops::Tensor>
PreferenceGradient<T> preference_loss(Ops& ops, const T& log_probs, const T& mask,
                                      const T& reference, const spec::DpoConfig& config,
                                      double all_pairs) {
  const T sums = ops.sum_last(ops.multiply(log_probs, mask));  // (2 P,)
  const T gains = ops.subtract(sums, reference);               // (2 P,)
  const auto side = [&](const T& both, std::int64_t i) {
    return ops.select(ops.view(both, {2, -1}), 0, i);
  };
  PreferenceGradient<T> out;
  PreferenceStatistics<LossValue<T>>& sum = out.statistics;
  sum.chosen_log_prob = summed(side(sums, 0));
  sum.rejected_log_prob = summed(side(sums, 1));
  sum.chosen_reward = {summed(side(gains, 0)), config.beta};
  sum.rejected_reward = {summed(side(gains, 1)), config.beta};
  sum.right = summed(ops.above(side(gains, 0), side(gains, 1)));

  T lengths, rates = gains;  // (2 P,): some losses divide gains by length
  if (spec::per_token(config.loss_type)) {
    lengths = ops.clamp(ops.sum_last(mask), 1, kMostTokens);
    rates = ops.divide(gains, lengths);
  }
  const PreferenceSlope<T> pairs =
      preference_slope(ops, ops.subtract(side(rates, 0), side(rates, 1)), config);
  sum.loss = {summed(pairs.loss), 1, all_pairs};

  const T d = of_both_sides(ops, pairs.slope);
  ops.divide_(d, all_pairs);
  const T column = ops.view(d, {-1, 1});
  if (lengths.defined()) ops.divide_(column, ops.view(lengths, {-1, 1}));
  out.d_log_probs = ops.multiply(mask, column);
  return out;
}

}  // namespace neap::step
