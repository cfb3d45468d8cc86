// Losses, advantage estimators and KL estimates, with verl's configuration names.
//
// Threads   stateless functions.
// Failure   kInvalidArgument that lists the known names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

/// How token losses are reduced to one number, over the whole mini-batch.
enum class LossAggregation : std::uint8_t {
  kTokenMean,                 ///< mean over tokens
  kTokenSum,                  ///< sum over tokens
  kSequenceMeanTokenSum,      ///< sum per sequence, then mean over sequences
  kSequenceMeanTokenMean,     ///< mean per sequence, then mean over sequences
  kSequenceMeanTokenSumNorm,  ///< kSequenceMeanTokenSum divided by a constant length
};
[[nodiscard]] std::vector<std::string> loss_aggregation_names();
[[nodiscard]] std::string_view to_string(LossAggregation mode);
[[nodiscard]] Result<LossAggregation> parse_loss_aggregation(std::string_view name);

/// The actor's loss of a token, from its ratio to the old policy and its advantage.
enum class PolicyLoss : std::uint8_t {
  kVanilla,  ///< PPO's clip with dual clip
  kGspo,     ///< clips one ratio per sequence: the geometric mean of its tokens' ratios
  kCispo,    ///< log-probabilities weighted by the clipped ratio, which gets no gradient
  kGpg,      ///< log-probabilities weighted by the advantage
  kDro,      ///< as kGpg, minus the squared distance to the old policy
  kSapo,     ///< a sigmoid of the ratio instead of the clip
  kGeoMean,  ///< one ratio per sequence: the geometric mean of its tokens' clipped ratios
  kClipCov,  ///< PPO's clip; random tokens of high covariance with the advantage are left out
  kKlCov,    ///< no clip; a KL penalty on tokens with the highest covariance
};
/// Whether the loss selects tokens at random.
[[nodiscard]] constexpr bool draws_tokens(PolicyLoss kind) {
  return kind == PolicyLoss::kClipCov;
}
[[nodiscard]] std::vector<std::string> policy_loss_names();
[[nodiscard]] std::string_view to_string(PolicyLoss kind);
[[nodiscard]] Result<PolicyLoss> parse_policy_loss(std::string_view name);
/// The aggregation that the loss requires, or else `configured`.
[[nodiscard]] LossAggregation aggregation_of(PolicyLoss kind, LossAggregation configured);

/// DPO's loss of a pair, from the log-probability gains of the policy over the reference on both
/// responses.
enum class PreferenceLoss : std::uint8_t {
  kSigmoid,      ///< logistic; cDPO with label smoothing
  kSigmoidNorm,  ///< logistic, of gains per token
  kIpo,          ///< squared distance of the gain per token to 1 / (2 beta)
  kIpoSum,       ///< squared distance of the total gain to 1 / (2 beta)
  kHinge,
  kRobust,  ///< logistic; unbiased if labels are wrong with probability label_smoothing
};
[[nodiscard]] std::vector<std::string> preference_loss_names();
[[nodiscard]] std::string_view to_string(PreferenceLoss kind);
[[nodiscard]] Result<PreferenceLoss> parse_preference_loss(std::string_view name);
/// Whether gains are divided by the response's length.
[[nodiscard]] constexpr bool per_token(PreferenceLoss kind) {
  return kind == PreferenceLoss::kSigmoidNorm || kind == PreferenceLoss::kIpo;
}

/// How rewards become advantages.
enum class AdvantageEstimator : std::uint8_t {
  kGae,
  kGrpo,
  kRloo,
  kReinforcePlusPlus,
  kReinforcePlusPlusBaseline,
  kRemax,
  kOpo,
  kGpg,
};
[[nodiscard]] std::vector<std::string> advantage_estimator_names();
[[nodiscard]] std::string_view to_string(AdvantageEstimator estimator);
[[nodiscard]] Result<AdvantageEstimator> parse_advantage_estimator(std::string_view name);
/// Whether it compares the responses to one prompt.
[[nodiscard]] bool compares_responses(AdvantageEstimator estimator);

/// Estimates of KL(p || q) from delta = log p - log q at a sample of p.
enum class KlEstimator : std::uint8_t {
  kK1,   ///< delta
  kAbs,  ///< |delta|
  kK2,   ///< delta^2 / 2
  kK3,   ///< e^-delta + delta - 1
};
struct KlKind {
  KlEstimator value = KlEstimator::kK1;
  /// Uses k2's gradient with its own value. Its name ends in "+".
  bool straight_through = false;
};
[[nodiscard]] std::vector<std::string> kl_names();
/// verl's long name, with "+" if straight_through.
[[nodiscard]] std::string to_string(KlKind kind);
[[nodiscard]] Result<KlKind> parse_kl(std::string_view name);

}  // namespace neap::spec
