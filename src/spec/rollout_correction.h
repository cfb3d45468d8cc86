// Correction between the policy that sampled and the one that trains: what
// `algorithm.rollout_correction` says, in verl's words.
//
// Threads   values and functions without state.   Failure   kInvalidArgument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

/// As the keys have it; "null" is off.
struct RolloutCorrectionConfig {
  std::string rollout_is = "null";           ///< null, token, sequence
  std::string rollout_is_threshold = "2.0";  ///< "HI", or "LO_HI"
  bool rollout_is_batch_normalize = false;
  std::string rollout_rs = "null";            ///< list of options, with commas
  std::string rollout_rs_threshold = "null";  ///< one, or one an option

  bool bypass_mode = false;  ///< the rollout's log-probabilities stand for the trainer's old ones
  std::string loss_type = "ppo_clip";  ///< of bypass mode: ppo_clip, reinforce

  [[nodiscard]] bool weighs() const { return rollout_is != "null"; }
  [[nodiscard]] bool rejects() const { return rollout_rs != "null"; }
  [[nodiscard]] bool any() const { return weighs() || rejects() || bypass_mode; }
  /// Weights are made of a whole batch, before the updates.
  [[nodiscard]] bool weighs_batch() const { return weighs() && !bypass_mode; }
};

/// Importance weights of tokens.
struct ImportanceWeights {
  bool sequences = false;     ///< one weight a sequence, on each of its tokens
  std::optional<double> low;  ///< set: weights outside are 0; else the larger ones are cut to high
  double high = 2;
};

/// What is left out of the loss: tokens or sequences whose divergence is outside [low, high].
struct RejectionRule {
  enum class Scope : std::uint8_t { kToken, kSequenceSum, kSequenceMean, kSequenceMax };
  std::string name;  ///< "seq_mean_k1"
  Scope scope = Scope::kToken;
  int estimator = 1;  ///< k1 = -r, k2 = r^2 / 2, k3 = e^r - 1 - r with r = trainer - rollout
  double low = 0, high = 0;
};

[[nodiscard]] std::vector<std::string> rollout_is_names();
/// Of a configuration that weighs.
[[nodiscard]] Result<ImportanceWeights> importance_weights(const RolloutCorrectionConfig& config);
/// In the order of the list; empty where nothing is rejected.
[[nodiscard]] Result<std::vector<RejectionRule>> rejection_rules(
    const RolloutCorrectionConfig& config);

/// What bypass mode does with each micro-batch.
struct BypassTerms {
  std::vector<RejectionRule> rejections;
  std::optional<ImportanceWeights> weights;  ///< REINFORCE only: PPO's ratio holds them
  bool normalize = false;                    ///< weights are divided by their mean
  bool reinforce = false;                    ///< no ratio and no clip
};
[[nodiscard]] std::vector<std::string> bypass_loss_names();
[[nodiscard]] Result<BypassTerms> bypass_terms(const RolloutCorrectionConfig& config);

}  // namespace neap::spec
