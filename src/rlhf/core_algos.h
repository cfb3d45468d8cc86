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

/// Estimator of KL(pi || ref) from both log-probabilities: "kl" or "k1", "abs", "mse" or "k2",
/// "low_var_kl" or "k3". A "+" behind the name keeps the value and takes the gradient of k2.
[[nodiscard]] at::Tensor kl_penalty(const at::Tensor& log_prob, const at::Tensor& ref_log_prob,
                                    std::string_view kind);

/// The coefficient of the KL in the reward: fixed, or moved towards a target by the batch's KL.
class KlController {
 public:
  explicit KlController(const spec::AlgorithmConfig& config);
  [[nodiscard]] double value() const { return value_; }
  /// `current_kl`: mean over sequences of their mean token KL; `n_steps`: sequences seen.
  void update(double current_kl, std::int64_t n_steps);
  void restore(double value) { value_ = value; }

 private:
  bool adaptive_;
  double value_, target_, horizon_;
};

struct ShapedReward {
  at::Tensor token_rewards;  ///< (B, T) score - beta KL
  double kl = 0;             ///< mean over sequences of their masked mean KL
};
/// Subtracts beta x KL(old || ref) from token-level scores.
[[nodiscard]] ShapedReward apply_kl_penalty(const at::Tensor& token_scores,
                                            const at::Tensor& old_log_prob,
                                            const at::Tensor& ref_log_prob, const at::Tensor& mask,
                                            double beta, std::string_view kind);

// ---- Advantages ----

struct Advantages {
  at::Tensor advantages;  ///< (B, T)
  at::Tensor returns;     ///< (B, T)
};
/// GAE. Where the mask is 0 the next value and the running advantage are carried through; the
/// result is whitened, the returns are not.
[[nodiscard]] Advantages gae_advantages(const at::Tensor& token_rewards, const at::Tensor& values,
                                        const at::Tensor& mask, double gamma, double lam);
/// Sum of rewards against its group's mean, over its unbiased deviation + 1e-6 when `by_std`; a
/// group of one keeps mean 0 and deviation 1. `group`: one id a sequence.
[[nodiscard]] Advantages grpo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group, bool by_std);
/// Sum of rewards against the mean of the others in its group; a group of one keeps its score.
[[nodiscard]] Advantages rloo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                         const std::vector<std::int64_t>& group);
/// Discounted returns, whitened over all tokens.
[[nodiscard]] Advantages reinforce_plus_plus_advantages(const at::Tensor& token_rewards,
                                                        const at::Tensor& mask, double gamma);

/// Counts of a mini-batch's response mask (B, T).
[[nodiscard]] step::LossScale loss_scale(const at::Tensor& mask);

}  // namespace neap::rlhf
