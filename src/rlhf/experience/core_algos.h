// The formulas of RLHF on (batch, tokens) tensors: KL penalties, advantages, losses. Names, clamps
// and epsilons are verl's.
//
// B is the number of sequences and T the number of response tokens. Masks are float tensors of 0
// and 1 with the shape of their values.
//
// Threads   stateless functions.
// Failure   Error for an unknown name.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/job/job.h"
#include "step/training/losses.h"

namespace neap::rlhf {

/// sum(x m) / (sum(m) + 1e-8)
[[nodiscard]] at::Tensor masked_mean(const at::Tensor& x, const at::Tensor& mask);
/// (x - mean) / sqrt(unbiased variance + 1e-8), with mean and variance over the masked elements.
/// Other elements are transformed in the same way. Fails if the mask has fewer than two elements.
[[nodiscard]] at::Tensor masked_whiten(const at::Tensor& x, const at::Tensor& mask);

// ---- KL to the reference, per token ----

/// Estimate of KL(pi || ref) from both log-probabilities.
[[nodiscard]] at::Tensor kl_penalty(const at::Tensor& log_prob, const at::Tensor& ref_log_prob,
                                    spec::KlKind kind);

/// The coefficient of the KL penalty in the reward: fixed, or adapted so that the batch's KL
/// approaches a target.
class KlController {
 public:
  explicit KlController(const spec::AlgorithmConfig& config);
  [[nodiscard]] double value() const { return value_; }
  /// `current_kl` is the mean over sequences of their mean token KL. `n_steps` is the number of
  /// sequences.
  void update(double current_kl, std::int64_t n_steps);
  /// Restores a value that a controller with initial value `start` had reached. Ignored if `start`
  /// is not the configured one or the coefficient is fixed.
  void restore(double value, double start);

 private:
  bool adaptive_;
  double start_, value_, target_, horizon_;
};

struct ShapedReward {
  at::Tensor token_rewards;  ///< (B, T) score - beta KL
  double kl = 0;             ///< mean over sequences of their masked mean KL
};
/// Subtracts beta x KL(old || ref) from token-level scores.
[[nodiscard]] ShapedReward apply_kl_penalty(const at::Tensor& token_scores,
                                            const at::Tensor& old_log_prob,
                                            const at::Tensor& ref_log_prob, const at::Tensor& mask,
                                            double beta, spec::KlKind kind);

/// Applies the configured penalty to scores (B,) of responses that are marked in `truncated` (B,).
[[nodiscard]] at::Tensor penalize_truncated(const spec::AlgorithmConfig& config,
                                            const at::Tensor& scores, const at::Tensor& truncated);
/// The rows (int64) of those groups of `n` whose `metric` (B,) differs within the group.
[[nodiscard]] at::Tensor rows_of_varied_groups(const at::Tensor& metric, std::int64_t n);

// ---- Advantages ----

struct Advantages {
  at::Tensor advantages;  ///< (B, T)
  at::Tensor returns;     ///< (B, T)
};
/// GAE. Where the mask is 0, the next value and the running advantage are carried through.
/// Advantages are whitened; returns are not.
[[nodiscard]] Advantages gae_advantages(const at::Tensor& token_rewards, const at::Tensor& values,
                                        const at::Tensor& mask, double gamma, double lam);
/// Sum of rewards minus the group's mean; with `by_std`, divided by the unbiased deviation + eps. A
/// group of one uses mean 0 and deviation 1. `group` has one id per sequence.
[[nodiscard]] Advantages grpo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group, bool by_std,
                                         double eps);
/// Sum of rewards minus the mean of the others in its group. A group of one keeps its score.
[[nodiscard]] Advantages rloo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group);
/// REINFORCE++: discounted returns, whitened over all tokens.
[[nodiscard]] Advantages reinforce_plus_plus_advantages(const at::Tensor& token_rewards,
                                                        const at::Tensor& mask, double gamma);

/// Sum of rewards minus the group's mean (0 for a group of one). It is whitened over all tokens, so
/// longer sequences weigh more.
[[nodiscard]] Advantages reinforce_plus_plus_baseline_advantages(
    const at::Tensor& token_rewards, const at::Tensor& mask,
    const std::vector<std::int64_t>& group);
/// Rewards from each token on, minus the score of the greedy response to the same prompt:
/// `baselines` (B,).
[[nodiscard]] Advantages remax_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                          const at::Tensor& baselines);
/// Sum of rewards minus the group's length-weighted mean. A group of one keeps its score.
[[nodiscard]] Advantages opo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                        const std::vector<std::int64_t>& group);
/// Sum of rewards minus the group's mean, times the ratio of all sequences to sequences with a
/// non-zero sum. A group of one uses mean 0.
[[nodiscard]] Advantages gpg_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                        const std::vector<std::int64_t>& group);

/// Inputs of a whole batch. Only GAE uses `values`, and only ReMax uses `baselines`.
struct AdvantageInputs {
  at::Tensor token_rewards, mask, values, baselines;
  std::vector<std::int64_t> group;
};
/// Applies `config.adv_estimator`.
[[nodiscard]] Advantages make_advantages(const spec::AlgorithmConfig& config,
                                         const AdvantageInputs& in);

/// The denominators of a mini-batch's loss. `tokens` are the tokens in the mask per sequence (B,),
/// or the mask itself. `length` is the divisor of seq-mean-token-sum-norm.
[[nodiscard]] step::LossScale loss_scale(const at::Tensor& tokens, std::int64_t length);

}  // namespace neap::rlhf
