#include "spec/types/rollout_correction.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.h"
#include "base/text.h"

namespace neap::spec {
namespace {

constexpr std::string_view kAt = "algorithm.rollout_correction";
// Divergences are compared in float32.
constexpr double kMost = std::numeric_limits<float>::max();

// Shortens a value for a message.
std::string short_text(std::string_view text) {
  constexpr std::size_t kBytes = 40;
  return excerpt(text, kBytes);
}

Status bad_value(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

std::vector<std::string> parts_of(std::string_view text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else if (c != ' ') {
      out.back() += c;
    }
  }
  return out;
}

struct Bounds {
  std::optional<double> low;
  double high = 0;
};

// Parses "2.0" or "0.5_5.0".
Result<Bounds> bounds_of(std::string_view key, std::string_view text) {
  const std::vector<std::string> parts = parts_of(text, '_');
  std::vector<double> numbers;
  for (const std::string& part : parts) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || !(value >= 0 && value <= kMost))
      break;
    numbers.push_back(value);
  }
  const bool whole = numbers.size() == parts.size() && parts.size() <= 2 && numbers.back() > 0;
  if (!whole || (numbers.size() == 2 && numbers[0] > numbers[1])) {
    return bad_value(
        format("{}.{} is \"{}\"; it can be a number such as 2.0, or two such as 0.5_5.0, "
               "the smaller first and none over {:.2g}",
               kAt, key, short_text(text), kMost));
  }
  if (numbers.size() == 1) return Bounds{{}, numbers[0]};
  return Bounds{numbers[0], numbers[1]};
}

constexpr std::pair<std::string_view, RejectionRule::Scope> kScopes[] = {
    {"token_k", RejectionRule::Scope::kToken},
    {"seq_sum_k", RejectionRule::Scope::kSequenceSum},
    {"seq_mean_k", RejectionRule::Scope::kSequenceMean},
    {"seq_max_k", RejectionRule::Scope::kSequenceMax},
};

Result<RejectionRule> rule_of(const std::string& name) {
  for (const auto& [prefix, scope] : kScopes) {
    if (!name.starts_with(prefix) || name.size() != prefix.size() + 1) continue;
    const int estimator = name.back() - '0';
    const int least = scope == RejectionRule::Scope::kSequenceMax ? 2 : 1;
    if (estimator < least || estimator > 3) break;
    return RejectionRule{name, scope, estimator, 0, 0};
  }
  return bad_value(
      format("{}.rollout_rs has \"{}\"; it can have token_k1 to token_k3, seq_sum_k1 to "
             "seq_sum_k3, seq_mean_k1 to seq_mean_k3, seq_max_k2 and seq_max_k3",
             kAt, short_text(name)));
}

}  // namespace

std::vector<std::string> rollout_is_names() {
  return {"null", "token", "sequence"};
}

Result<ImportanceWeights> importance_weights(const RolloutCorrectionConfig& config) {
  NEAP_TRY_ASSIGN(const Bounds bounds,
                  bounds_of("rollout_is_threshold", config.rollout_is_threshold));
  return ImportanceWeights{config.rollout_is == "sequence", bounds.low, bounds.high};
}

std::vector<std::string> bypass_loss_names() {
  return {"ppo_clip", "reinforce"};
}

Result<BypassTerms> bypass_terms(const RolloutCorrectionConfig& config) {
  BypassTerms out;
  NEAP_TRY_ASSIGN(out.rejections, rejection_rules(config));
  out.normalize = config.rollout_is_batch_normalize;
  out.reinforce = config.loss_type == "reinforce";
  if (out.reinforce && config.weighs()) {
    NEAP_TRY_ASSIGN(out.weights, importance_weights(config));
  }
  return out;
}

Result<std::vector<RejectionRule>> rejection_rules(const RolloutCorrectionConfig& config) {
  std::vector<RejectionRule> out;
  if (!config.rejects()) return out;
  const std::vector<std::string> names = parts_of(config.rollout_rs, ',');
  const std::vector<std::string> thresholds = parts_of(config.rollout_rs_threshold, ',');
  if (config.rollout_rs_threshold == "null" ||
      (thresholds.size() != 1 && thresholds.size() != names.size())) {
    return bad_value(format(
        "{}.rollout_rs_threshold is \"{}\"; rollout_rs \"{}\" needs one threshold, "
        "or one for each of its {} options",
        kAt, short_text(config.rollout_rs_threshold), short_text(config.rollout_rs), names.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    NEAP_TRY_ASSIGN(RejectionRule rule, rule_of(names[i]));
    NEAP_TRY_ASSIGN(const Bounds bounds,
                    bounds_of("rollout_rs_threshold", thresholds[thresholds.size() == 1 ? 0 : i]));
    if (rule.estimator == 1) {
      // For ratios, compare logarithms. A single number HI means 1 / HI to HI.
      rule.low = std::log(bounds.low ? *bounds.low : 1 / bounds.high);
      rule.high = std::log(bounds.high);
    } else {
      rule.low = -std::numeric_limits<double>::infinity();
      rule.high = bounds.high;
    }
    out.push_back(std::move(rule));
  }
  return out;
}

}  // namespace neap::spec
