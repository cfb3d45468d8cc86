// Responses of a batch as texts with what they scored: for the console, rollouts.jsonl and samples of
// validation.
//
// Threads   one at a time.   Failure   Error of the data files.
// Cost      decodes each response.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "report/rollout_log.h"
#include "rlhf/experience.h"
#include "rlhf/reward_scorer.h"

namespace neap::rlhf {

/// A response to `prompt` and its numbers (RewardScorer::columns; empty without functions). The verdict
/// is the accuracy's, where a function tells one.
[[nodiscard]] report::Rollout make_rollout(const Context& context, const RewardScorer& functions,
                                           const PromptRow& prompt, const ResponseText& response,
                                           double score, std::span<const double> numbers);
/// Of a whole batch of training rows, in its order.
[[nodiscard]] std::vector<report::Rollout> rollouts_of(const Context& context,
                                                       const RewardScorer& functions,
                                                       const Experience& batch);

/// A text of training data after `prompt`, as the model predicts it from the tokens before each: what it
/// would not choose stands in «». `right` and `mask` (T,): as TokenLogProbs and the batch have them. The
/// score is the share of right tokens.
[[nodiscard]] report::Rollout make_prediction(const Context& context, const train::Tokens& prompt,
                                              const train::Tokens& response,
                                              const at::Tensor& right, const at::Tensor& mask);

/// `count` of `rows` rows to show after step `step`: the first half is the same at every step, the rest
/// is drawn anew.
[[nodiscard]] std::set<std::size_t> rows_to_show(std::size_t rows, std::size_t count,
                                                 std::int64_t seed, std::int64_t step);

}  // namespace neap::rlhf
