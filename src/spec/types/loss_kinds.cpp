#include "spec/types/loss_kinds.h"

#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<LossAggregation> kAggregations[] = {
    {"token-mean", LossAggregation::kTokenMean},
    {"token-sum", LossAggregation::kTokenSum},
    {"seq-mean-token-sum", LossAggregation::kSequenceMeanTokenSum},
    {"seq-mean-token-mean", LossAggregation::kSequenceMeanTokenMean},
    {"seq-mean-token-sum-norm", LossAggregation::kSequenceMeanTokenSumNorm},
};
constexpr Named<PolicyLoss> kPolicyLosses[] = {
    {"vanilla", PolicyLoss::kVanilla},  {"gspo", PolicyLoss::kGspo},
    {"cispo", PolicyLoss::kCispo},      {"gpg", PolicyLoss::kGpg},
    {"dro", PolicyLoss::kDro},          {"sapo", PolicyLoss::kSapo},
    {"geo_mean", PolicyLoss::kGeoMean}, {"clip_cov", PolicyLoss::kClipCov},
    {"kl_cov", PolicyLoss::kKlCov},
};
constexpr Named<PreferenceLoss> kPreferences[] = {
    {"sigmoid", PreferenceLoss::kSigmoid}, {"sigmoid_norm", PreferenceLoss::kSigmoidNorm},
    {"ipo", PreferenceLoss::kIpo},         {"ipo_sum", PreferenceLoss::kIpoSum},
    {"hinge", PreferenceLoss::kHinge},     {"robust", PreferenceLoss::kRobust},
};
constexpr Named<AdvantageEstimator> kAdvantages[] = {
    {"gae", AdvantageEstimator::kGae},
    {"grpo", AdvantageEstimator::kGrpo},
    {"rloo", AdvantageEstimator::kRloo},
    {"reinforce_plus_plus", AdvantageEstimator::kReinforcePlusPlus},
    {"reinforce_plus_plus_baseline", AdvantageEstimator::kReinforcePlusPlusBaseline},
    {"remax", AdvantageEstimator::kRemax},
    {"opo", AdvantageEstimator::kOpo},
    {"gpg", AdvantageEstimator::kGpg},
};
// The first name of an estimator is the one that is written.
constexpr Named<KlEstimator> kEstimators[] = {
    {"kl", KlEstimator::kK1},  {"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},
    {"mse", KlEstimator::kK2}, {"k2", KlEstimator::kK2}, {"low_var_kl", KlEstimator::kK3},
    {"k3", KlEstimator::kK3},
};

}  // namespace

std::vector<std::string> loss_aggregation_names() {
  return names_of(kAggregations);
}
std::string_view to_string(LossAggregation mode) {
  return name_of(kAggregations, mode);
}
Result<LossAggregation> parse_loss_aggregation(std::string_view name) {
  return parse_name(kAggregations, name, "loss_agg_mode");
}

std::vector<std::string> policy_loss_names() {
  return names_of(kPolicyLosses);
}
std::string_view to_string(PolicyLoss kind) {
  return name_of(kPolicyLosses, kind);
}
Result<PolicyLoss> parse_policy_loss(std::string_view name) {
  return parse_name(kPolicyLosses, name, "policy_loss.loss_mode");
}
LossAggregation aggregation_of(PolicyLoss kind, LossAggregation configured) {
  const bool by_sequence =
      kind == PolicyLoss::kGspo || kind == PolicyLoss::kSapo || kind == PolicyLoss::kGeoMean;
  return by_sequence ? LossAggregation::kSequenceMeanTokenMean : configured;
}

std::vector<std::string> preference_loss_names() {
  return names_of(kPreferences);
}
std::string_view to_string(PreferenceLoss kind) {
  return name_of(kPreferences, kind);
}
Result<PreferenceLoss> parse_preference_loss(std::string_view name) {
  return parse_name(kPreferences, name, "dpo.loss_type");
}

std::vector<std::string> advantage_estimator_names() {
  return names_of(kAdvantages);
}
std::string_view to_string(AdvantageEstimator estimator) {
  return name_of(kAdvantages, estimator);
}
Result<AdvantageEstimator> parse_advantage_estimator(std::string_view name) {
  return parse_name(kAdvantages, name, "algorithm.adv_estimator");
}
bool compares_responses(AdvantageEstimator estimator) {
  switch (estimator) {
    case AdvantageEstimator::kGrpo:
    case AdvantageEstimator::kRloo:
    case AdvantageEstimator::kReinforcePlusPlusBaseline:
    case AdvantageEstimator::kOpo:
    case AdvantageEstimator::kGpg:
      return true;
    case AdvantageEstimator::kGae:
    case AdvantageEstimator::kReinforcePlusPlus:
    case AdvantageEstimator::kRemax:
      break;
  }
  return false;
}

std::vector<std::string> kl_names() {
  std::vector<std::string> names;
  for (const char* suffix : {"", "+"}) {
    for (const std::string& name : names_of(kEstimators)) names.push_back(name + suffix);
  }
  return names;
}

std::string to_string(KlKind kind) {
  return std::string(name_of(kEstimators, kind.value)) + (kind.straight_through ? "+" : "");
}

Result<KlKind> parse_kl(std::string_view name) {
  KlKind kind;
  std::string_view stem = name;
  if (stem.ends_with('+')) {
    kind.straight_through = true;
    stem.remove_suffix(1);
  }
  const Result<KlEstimator> value = parse_name(kEstimators, stem, "A KL estimator");
  if (!value.ok()) return wrong_name(name, "A KL estimator", kl_names());
  kind.value = *value;
  return kind;
}

}  // namespace neap::spec
