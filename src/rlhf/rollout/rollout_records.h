// Responses of a batch as texts with their scores, for the console, rollouts.jsonl and validation
// samples.
//
// Threads   one at a time.
// Failure   Error of the data files.
// Cost      decodes each response.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "report/rollout_log.h"
#include "rlhf/experience/experience.h"
#include "rlhf/rollout/reward_scorer.h"

namespace neap::rlhf {

/// A response to `prompt` and its numbers (RewardScorer::columns; empty without functions). The
/// verdict is its accuracy, if a function gives one.
[[nodiscard]] report::Rollout make_rollout(const Context& context, const RewardScorer& functions,
                                           const PromptRow& prompt, const ResponseText& response,
                                           double score, std::span<const double> numbers);
/// For a whole batch of training rows, in order.
[[nodiscard]] std::vector<report::Rollout> rollouts_of(const Context& context,
                                                       const RewardScorer& functions,
                                                       const Experience& batch);

/// A training text after `prompt`, with the model's next-token predictions: tokens that the model
/// would not choose are marked with «». `right` and `mask` (T,) come from TokenLogProbs and the
/// batch. The score is the fraction of right tokens.
[[nodiscard]] report::Rollout make_prediction(const Context& context, const train::Tokens& prompt,
                                              const train::Tokens& response,
                                              const at::Tensor& right, const at::Tensor& mask);

/// Selects `count` of `rows` rows to show after step `step`. The first half is the same at every
/// step; the rest is random.
[[nodiscard]] std::set<std::size_t> rows_to_show(std::size_t rows, std::size_t count,
                                                 std::int64_t seed, std::int64_t step);

}  // namespace neap::rlhf
