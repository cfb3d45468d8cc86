// The formulas of RLHF on (batch, tokens) tensors: KL penalties, advantages, losses. Names, clamps
// and epsilons are verl's.
//
// Threads   free functions without shared state.   Failure   Error for an unknown name.
// Masks are float tensors of 0 and 1 in the shape of their values; B sequences, T response tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/job.h"
#include "step/losses.h"

namespace neap::rlhf {

/// sum(x m) / (sum(m) + 1e-8)
[[nodiscard]] at::Tensor masked_mean(const at::Tensor& x, const at::Tensor& mask);
/// (x - mean) / sqrt(unbiased variance + 1e-8) over the masked elements; the others are shifted and
/// scaled in the same way. Fails when fewer than two elements are in the mask.
[[nodiscard]] at::Tensor masked_whiten(const at::Tensor& x, const at::Tensor& mask);

// ---- KL to the reference, token by token ----

/// Estimate of KL(pi || ref) from both log-probabilities.
[[nodiscard]] at::Tensor kl_penalty(const at::Tensor& log_prob, const at::Tensor& ref_log_prob,
                                    spec::KlKind kind);

/// The coefficient of the KL in the reward: fixed, or moved towards a target by the batch's KL.
class KlController {
 public:
  explicit KlController(const spec::AlgorithmConfig& config);
  [[nodiscard]] double value() const { return value_; }
  /// `current_kl`: mean over sequences of their mean token KL; `n_steps`: sequences seen.
  void update(double current_kl, std::int64_t n_steps);
  /// Goes on from the value that one with this start had reached. Without effect where that start is not the configured
  /// one, or the value does not move.
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

/// Scores (B,) of which those of `truncated` (B,) responses are penalised as configured.
[[nodiscard]] at::Tensor penalize_truncated(const spec::AlgorithmConfig& config,
                                            const at::Tensor& scores, const at::Tensor& truncated);
/// Rows (int64) of the groups of `n` whose `metric` (B,) is not the same for all.
[[nodiscard]] at::Tensor rows_of_varied_groups(const at::Tensor& metric, std::int64_t n);

// ---- Advantages ----

struct Advantages {
  at::Tensor advantages;  ///< (B, T)
  at::Tensor returns;     ///< (B, T)
};
/// GAE. Where the mask is 0 the next value and the running advantage are carried through; the
/// result is whitened, the returns are not.
[[nodiscard]] Advantages gae_advantages(const at::Tensor& token_rewards, const at::Tensor& values,
                                        const at::Tensor& mask, double gamma, double lam);
/// Sum of rewards against its group's mean, over its unbiased deviation + eps when `by_std`; a
/// group of one keeps mean 0 and deviation 1. `group`: one id a sequence.
[[nodiscard]] Advantages grpo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group, bool by_std,
                                         double eps);
/// Sum of rewards against the mean of the others in its group; a group of one keeps its score.
[[nodiscard]] Advantages rloo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group);
/// Discounted returns, whitened over all tokens: REINFORCE++.
[[nodiscard]] Advantages reinforce_plus_plus_advantages(const at::Tensor& token_rewards,
                                                        const at::Tensor& mask, double gamma);

/// Sum of rewards against its group's mean (0 for a group of one), whitened over all tokens, so that
/// longer sequences weigh more.
[[nodiscard]] Advantages reinforce_plus_plus_baseline_advantages(
    const at::Tensor& token_rewards, const at::Tensor& mask,
    const std::vector<std::int64_t>& group);
/// Rewards from each token on, less the score of the greedy response to the same prompt:
/// `baselines` (B,).
[[nodiscard]] Advantages remax_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                          const at::Tensor& baselines);
/// Sum of rewards against its group's mean weighted by length; a group of one keeps its score.
[[nodiscard]] Advantages opo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                        const std::vector<std::int64_t>& group);
/// Sum of rewards against its group's mean, times sequences over sequences whose sum is not 0; a
/// group of one has mean 0.
[[nodiscard]] Advantages gpg_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                        const std::vector<std::int64_t>& group);

/// Of a whole batch. `values` of GAE only, `baselines` of ReMax only.
struct AdvantageInputs {
  at::Tensor token_rewards, mask, values, baselines;
  std::vector<std::int64_t> group;
};
/// What `config.adv_estimator` makes of them.
[[nodiscard]] Advantages make_advantages(const spec::AlgorithmConfig& config,
                                         const AdvantageInputs& in);

/// Of a mini-batch's tokens in the mask, (B,) of each sequence or the mask itself; `length`: what seq-mean-token-sum-norm divides by.
[[nodiscard]] step::LossScale loss_scale(const at::Tensor& tokens, std::int64_t length);

}  // namespace neap::rlhf
