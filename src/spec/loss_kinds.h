// Kinds of losses and KL estimates, by the names that a configuration has for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

/// How the losses of tokens become one number.
enum class LossAggregation {
  kTokenMean,
  kSequenceMeanTokenSum,
  kSequenceMeanTokenMean,
  kSequenceMeanTokenSumNorm,
};
[[nodiscard]] std::vector<std::string> loss_aggregation_names();
[[nodiscard]] Result<LossAggregation> parse_loss_aggregation(std::string_view name);

/// Estimates of KL(p || q) from delta = log p - log q of a sample of p.
enum class KlEstimator {
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
[[nodiscard]] Result<KlKind> parse_kl(std::string_view name);

}  // namespace neap::spec
