#include "spec/loss_kinds.h"

#include <utility>

#include "base/format.h"

namespace neap::spec {
namespace {

constexpr std::pair<std::string_view, LossAggregation> kAggregations[] = {
    {"token-mean", LossAggregation::kTokenMean},
    {"seq-mean-token-sum", LossAggregation::kSequenceMeanTokenSum},
    {"seq-mean-token-mean", LossAggregation::kSequenceMeanTokenMean},
    {"seq-mean-token-sum-norm", LossAggregation::kSequenceMeanTokenSumNorm},
};
constexpr std::pair<std::string_view, KlEstimator> kEstimators[] = {
    {"kl", KlEstimator::kK1},  {"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},
    {"mse", KlEstimator::kK2}, {"k2", KlEstimator::kK2}, {"low_var_kl", KlEstimator::kK3},
    {"k3", KlEstimator::kK3},
};

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

std::vector<std::string> loss_aggregation_names() {
  std::vector<std::string> names;
  for (const auto& [name, mode] : kAggregations) names.emplace_back(name);
  return names;
}

Result<LossAggregation> parse_loss_aggregation(std::string_view name) {
  for (const auto& [known, mode] : kAggregations) {
    if (known == name) return mode;
  }
  return Status(ErrorCode::kInvalidArgument,
                format("loss aggregation \"{}\" is unknown; it can be {}", name,
                       joined(loss_aggregation_names())));
}

std::vector<std::string> kl_names() {
  std::vector<std::string> names;
  for (const char* suffix : {"", "+"}) {
    for (const auto& [name, kind] : kEstimators) names.push_back(std::string(name) + suffix);
  }
  return names;
}

Result<KlKind> parse_kl(std::string_view name) {
  KlKind kind;
  std::string_view stem = name;
  if (stem.ends_with('+')) {
    kind.straight_through = true;
    stem.remove_suffix(1);
  }
  for (const auto& [known, estimator] : kEstimators) {
    if (known != stem) continue;
    kind.value = estimator;
    return kind;
  }
  return Status(ErrorCode::kInvalidArgument,
                format("KL estimator \"{}\" is unknown; it can be {}", name, joined(kl_names())));
}

}  // namespace neap::spec
