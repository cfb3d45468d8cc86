// Kinds of losses, advantages and KL estimates, by their names in a configuration: verl's.
//
// Threads   functions without state.   Failure   kInvalidArgument naming the known ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

/// How the losses of tokens become one number. Tokens and sequences are those of the whole
/// mini-batch.
enum class LossAggregation : std::uint8_t {
  kTokenMean,                 ///< over the mini-batch's tokens
  kTokenSum,                  ///< nothing is divided
  kSequenceMeanTokenSum,      ///< sums of sequences over the number of sequences
  kSequenceMeanTokenMean,     ///< means of sequences over the number of sequences
  kSequenceMeanTokenSumNorm,  ///< kSequenceMeanTokenSum over a constant length
};
[[nodiscard]] std::vector<std::string> loss_aggregation_names();
[[nodiscard]] std::string_view to_string(LossAggregation mode);
[[nodiscard]] Result<LossAggregation> parse_loss_aggregation(std::string_view name);

/// The actor's loss of a token from its ratio to the old policy and its advantage.
enum class PolicyLoss : std::uint8_t {
  kVanilla,  ///< PPO's clip with the dual clip
  kGspo,     ///< clips one ratio a sequence, the geometric mean of its tokens'
  kCispo,    ///< log-probabilities weighted with the clipped ratio, which has no gradient
  kGpg,      ///< log-probabilities weighted with the advantage alone
  kDro,      ///< those, less the squared distance to the old policy
  kSapo,     ///< a sigmoid of the ratio in place of the clip
  kGeoMean,  ///< one ratio a sequence: the geometric mean of its tokens' clipped ratios
  kClipCov,  ///< PPO's clip; tokens of high covariance with the advantage are left out at random
  kKlCov,    ///< no clip; tokens of the highest covariance are pulled to the old policy
};
/// The loss draws tokens at random.
[[nodiscard]] constexpr bool draws_tokens(PolicyLoss kind) {
  return kind == PolicyLoss::kClipCov;
}
[[nodiscard]] std::vector<std::string> policy_loss_names();
[[nodiscard]] std::string_view to_string(PolicyLoss kind);
[[nodiscard]] Result<PolicyLoss> parse_policy_loss(std::string_view name);
/// `configured`, or what the loss always takes.
[[nodiscard]] LossAggregation aggregation_of(PolicyLoss kind, LossAggregation configured);

/// DPO's loss of a pair, from what the policy gained over the reference on both responses.
enum class PreferenceLoss : std::uint8_t {
  kSigmoid,      ///< logistic; with label smoothing cDPO
  kSigmoidNorm,  ///< logistic of gains per token
  kIpo,          ///< squared distance of gains per token to 1 / (2 beta)
  kIpoSum,       ///< squared distance of whole gains to it
  kHinge,
  kRobust,  ///< logistic, unbiased under labels that are wrong with probability label_smoothing
};
[[nodiscard]] std::vector<std::string> preference_loss_names();
[[nodiscard]] std::string_view to_string(PreferenceLoss kind);
[[nodiscard]] Result<PreferenceLoss> parse_preference_loss(std::string_view name);
/// Whether a response's gain is divided by its length.
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
/// Whether it compares the responses to one prompt with each other.
[[nodiscard]] bool compares_responses(AdvantageEstimator estimator);

/// Estimates of KL(p || q) from delta = log p - log q of a sample of p.
enum class KlEstimator : std::uint8_t {
  kK1,   ///< delta
  kAbs,  ///< |delta|
  kK2,   ///< delta^2 / 2
  kK3,   ///< e^-delta + delta - 1
};
struct KlKind {
  KlEstimator value = KlEstimator::kK1;
  /// The gradient is that of k2, the value its own: a name with "+" behind it.
  bool straight_through = false;
};
[[nodiscard]] std::vector<std::string> kl_names();
/// verl's longer name, with "+" where it has one.
[[nodiscard]] std::string to_string(KlKind kind);
[[nodiscard]] Result<KlKind> parse_kl(std::string_view name);

}  // namespace neap::spec
