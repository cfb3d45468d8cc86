// Rollout correction: correction for the difference between the sampling policy and the trained
// policy. Settings are those of `algorithm.rollout_correction`, with verl's names.
//
// Threads   values and stateless functions.
// Failure   kInvalidArgument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

/// The keys' values; "null" means off.
struct RolloutCorrectionConfig {
  std::string rollout_is = "null";           ///< null, token, sequence
  std::string rollout_is_threshold = "2.0";  ///< "HI", or "LO_HI"
  bool rollout_is_batch_normalize = false;
  std::string rollout_rs = "null";            ///< comma-separated options
  std::string rollout_rs_threshold = "null";  ///< one threshold, or one per option

  bool bypass_mode = false;  ///< the rollout's log-probabilities replace the trainer's old ones
  std::string loss_type = "ppo_clip";  ///< for bypass_mode: ppo_clip, reinforce

  [[nodiscard]] bool weighs() const { return rollout_is != "null"; }
  [[nodiscard]] bool rejects() const { return rollout_rs != "null"; }
  [[nodiscard]] bool any() const { return weighs() || rejects() || bypass_mode; }
  /// Weights are computed for a whole batch, before the updates.
  [[nodiscard]] bool weighs_batch() const { return weighs() && !bypass_mode; }
};

/// Importance weights of tokens.
struct ImportanceWeights {
  bool sequences = false;  ///< one weight per sequence, applied to each of its tokens
  /// If set, weights outside [low, high] become 0. Otherwise weights are capped at high.
  std::optional<double> low;
  double high = 2;
};

/// Excludes tokens or sequences from the loss if their divergence is outside [low, high].
struct RejectionRule {
  enum class Scope : std::uint8_t { kToken, kSequenceSum, kSequenceMean, kSequenceMax };
  std::string name;  ///< "seq_mean_k1"
  Scope scope = Scope::kToken;
  int estimator = 1;  ///< k1 = -r, k2 = r^2 / 2, k3 = e^r - 1 - r with r = trainer - rollout
  double low = 0, high = 0;
};

[[nodiscard]] std::vector<std::string> rollout_is_names();
/// Only if the configuration uses weights.
[[nodiscard]] Result<ImportanceWeights> importance_weights(const RolloutCorrectionConfig& config);
/// In the order of the list; empty if nothing is rejected.
[[nodiscard]] Result<std::vector<RejectionRule>> rejection_rules(
    const RolloutCorrectionConfig& config);

/// The terms that bypass mode applies to each micro-batch.
struct BypassTerms {
  std::vector<RejectionRule> rejections;
  /// For REINFORCE only; PPO's ratio already contains them.
  std::optional<ImportanceWeights> weights;
  bool normalize = false;  ///< divide weights by their mean
  bool reinforce = false;  ///< use neither ratio nor clip
};
[[nodiscard]] std::vector<std::string> bypass_loss_names();
[[nodiscard]] Result<BypassTerms> bypass_terms(const RolloutCorrectionConfig& config);

}  // namespace neap::spec
