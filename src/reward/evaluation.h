// Statistics of several responses to each of many prompts: means, best of k, majority votes.
//
// Threads   stateless functions.
//
// Cost      linear in the responses, plus sorting n of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace neap::reward {

/// Result of one response.
struct Outcome {
  double score = 0;                   ///< its reward
  std::optional<double> accuracy;     ///< 1: right; a function may give values between 0 and 1
  std::optional<std::string> answer;  ///< canonical form, so that equal answers have equal texts
};

/// Probability that at least one of `k` responses is right. They are drawn without replacement from
/// `n`, of which `right` are right. Unbiased estimator of Chen et al. (2021): 1 - C(n - right, k) /
/// C(n, k). Requires 1 <= k <= n.
[[nodiscard]] double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k);

/// The k of pass@k for n responses: the powers of two below n, and n.
[[nodiscard]] std::vector<std::int64_t> pass_counts(std::int64_t n);

/// Accuracy of the most frequent answer of `responses` to one prompt. Among equally frequent answers the
/// first one counts. Responses without an answer do not vote; 0 if none has one.
[[nodiscard]] double majority_accuracy(std::span<const Outcome> responses);

/// Named values in display order.
using Figures = std::vector<std::pair<std::string, double>>;

/// Means over prompts. `outcomes` has `n` consecutive responses per prompt. Names are those of
/// verl: "acc/mean@4", "acc/maj@4/mean", "reward/mean@4", "reward/std@4", "reward/best@4/mean",
/// "reward/worst@4/mean" and "acc/pass@2". With n = 1 only the means. Accuracy is included only if
/// every response has one, votes only if some response has an answer.
[[nodiscard]] Figures evaluation_figures(std::span<const Outcome> outcomes, std::int64_t n);

/// verl's name of a figure for one data source. It is "val-core/gsm8k/acc/mean@4" for the main
/// figures of a comparison, "val-aux/..." for the others.
[[nodiscard]] std::string source_metric(const std::string& source, const std::string& figure,
                                        bool has_accuracy);

}  // namespace neap::reward
