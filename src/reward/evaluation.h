// What the scores of several responses to each of many prompts say: means, the best of k, votes.
//
// Threads   functions without state.   Cost   linear in the responses, besides sorting n of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace neap::reward {

/// What is known of one response.
struct Outcome {
  double score = 0;                   ///< its reward
  std::optional<double> accuracy;     ///< 1: right. A function may give parts of 1
  std::optional<std::string> answer;  ///< written in one way, so that equal answers are equal
};

/// The probability that one of `k` responses is right, drawn without replacement from `n` of which
/// `right` are: the unbiased estimator of Chen et al. (2021), 1 - C(n - right, k) / C(n, k).
/// 1 <= k <= n.
[[nodiscard]] double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k);

/// The k of pass@k for n responses: 1, 2, 4 and so on below n, and n.
[[nodiscard]] std::vector<std::int64_t> pass_counts(std::int64_t n);

/// The accuracy of the answer that most of `responses` to one prompt give; of several, of the one
/// that came first. Responses without an answer have no vote; 0 where none has one.
[[nodiscard]] double majority_accuracy(std::span<const Outcome> responses);

/// Named values in the order in which they are shown.
using Figures = std::vector<std::pair<std::string, double>>;

/// Means over prompts; `outcomes` has `n` responses to each in turn. Names as verl's: "acc/mean@4",
/// "acc/maj@4/mean", "reward/mean@4", "reward/std@4", "reward/best@4/mean", "reward/worst@4/mean", and
/// "acc/pass@2". With n = 1 the means alone; figures of accuracy only where every response has one,
/// votes only where some response has an answer.
[[nodiscard]] Figures evaluation_figures(std::span<const Outcome> outcomes, std::int64_t n);

/// verl's name of a figure of the rows of one data source: "val-core/gsm8k/acc/mean@4" for what
/// models are compared by, "val-aux/..." for the rest.
[[nodiscard]] std::string source_metric(const std::string& source, const std::string& figure,
                                        bool has_accuracy);

}  // namespace neap::reward
