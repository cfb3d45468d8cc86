// The job's reward functions over a step's responses.
//
// Ranks     each scores its share; Experience carries the numbers to the whole batch.
// Threads   one at a time.   Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "reward/reward_set.h"
#include "rlhf/trainer.h"

namespace neap::rlhf {

struct Experience;

/// A row of data with its prompt.
struct PromptRow {
  train::Tokens tokens;
  /// As the file has it; null where nothing reads it.
  std::shared_ptr<const Json> json;
  std::string where{};  ///< "a.jsonl:12", of a row with `json`
};

[[nodiscard]] inline std::vector<train::Tokens> tokens_of(const std::vector<PromptRow>& prompts) {
  std::vector<train::Tokens> out;
  out.reserve(prompts.size());
  for (const PromptRow& prompt : prompts) out.push_back(prompt.tokens);
  return out;
}

/// The tokens of a sequence's response, with the end token.
[[nodiscard]] train::Tokens response_tokens(const Experience& e, std::int64_t row);
/// The response of a sequence as text, without the end token.
struct ResponseText {
  std::string text;
  std::int64_t tokens = 0;  ///< with the end token
  bool truncated = false;   ///< as Experience::truncated
};
[[nodiscard]] ResponseText response_text(const Context& context, const Experience& e,
                                         std::int64_t row);

class RewardScorer {
 public:
  explicit RewardScorer(const Context& context) : context_(context), set_(context.rewards) {}

  [[nodiscard]] bool empty() const { return set_.empty(); }
  /// One row of numbers a response, (B, columns), float64 on the host; NaN where a function does not
  /// score it. Responses answer `prompts` in turn, `n` each. Of ranks with the same responses each asks about those
  /// that it generated. A function that fails is a StepFailure.
  [[nodiscard]] at::Tensor score(const std::vector<PromptRow>& prompts, std::int64_t n,
                                 const Experience& responses);
  /// (B,): the weighted sums.
  [[nodiscard]] at::Tensor totals(const at::Tensor& numbers) const;
  /// Of one response's numbers (reward::RewardSet).
  [[nodiscard]] std::optional<double> accuracy(std::span<const double> numbers) const {
    return set_.accuracy(numbers);
  }
  /// (B,): of each response; an error where a response has none.
  [[nodiscard]] at::Tensor accuracies(const at::Tensor& numbers) const;
  [[nodiscard]] std::optional<std::string> answer(const PromptRow& prompt,
                                                  const ResponseText& response) const;
  [[nodiscard]] const std::vector<reward::RewardSet::Column>& columns() const {
    return set_.columns();
  }
  /// rewards/NAME/mean, max and min, and rewards/NAME/PART, over the responses that have one. Warns
  /// of a part that none has in the first batch that its function scores.
  void describe(const at::Tensor& numbers, Metrics& metrics);

 private:
  [[nodiscard]] std::vector<std::vector<double>> score_collectively(
      std::span<const reward::Response> responses);
  const Context& context_;
  reward::RewardSet& set_;
  std::set<std::string> looked_for_;  // columns, by name
};

/// Rows with these numbers; of all of them.
[[nodiscard]] std::vector<PromptRow> read_prompts(const Rows& rows,
                                                  const std::vector<std::size_t>& numbers);
[[nodiscard]] std::vector<PromptRow> read_prompts(const Rows& rows);

/// Name of the reward model's score among those of functions.
inline constexpr const char* kRewardModel = "reward_model";

struct ResponseScores {
  at::Tensor scores;   // (B,) sums by weight
  at::Tensor model;    // (B,) of the reward model alone; undefined without one
  at::Tensor numbers;  // (B, columns); undefined without functions
};
/// Scores of responses that answer `prompts` in turn, `n` each. `by_model`: those of the reward model, if there is one.
[[nodiscard]] ResponseScores score_responses(const Context& context, const at::Tensor& by_model,
                                             RewardScorer& functions,
                                             const std::vector<PromptRow>& prompts, std::int64_t n,
                                             const Experience& responses);

}  // namespace neap::rlhf
