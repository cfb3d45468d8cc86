// Applies the job's reward functions to a step's responses.
//
// Ranks     each rank scores its share; Experience carries the numbers to the whole batch.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "reward/reward_set.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

struct Experience;

/// A row of data with its prompt.
struct PromptRow {
  train::Tokens tokens;
  /// As in the file; null if nothing reads it.
  std::shared_ptr<const Json> json;
  std::string where{};  ///< "a.jsonl:12"; set if `json` is
};

[[nodiscard]] inline std::vector<train::Tokens> tokens_of(const std::vector<PromptRow>& prompts) {
  std::vector<train::Tokens> out;
  out.reserve(prompts.size());
  for (const PromptRow& prompt : prompts) out.push_back(prompt.tokens);
  return out;
}

/// The response tokens of a sequence, including the end token.
[[nodiscard]] train::Tokens response_tokens(const Experience& e, std::int64_t row);
/// The response of a sequence as text, without the end token.
struct ResponseText {
  std::string text;
  std::int64_t tokens = 0;  ///< including the end token
  bool truncated = false;   ///< as Experience::truncated
};
[[nodiscard]] ResponseText response_text(const Context& context, const Experience& e,
                                         std::int64_t row);

class RewardScorer {
 public:
  explicit RewardScorer(const Context& context) : context_(context), set_(context.rewards) {}

  [[nodiscard]] bool empty() const { return set_.empty(); }
  /// One row of numbers per response, (B, columns), float64 on the host. It is NaN if a function
  /// does not score the response. `prompts` have `n` responses each, in order. Ranks with the same
  /// responses each score those that they generated. A failing function is a StepFailure.
  [[nodiscard]] at::Tensor score(const std::vector<PromptRow>& prompts, std::int64_t n,
                                 const Experience& responses);
  /// Weighted sums (B,).
  [[nodiscard]] at::Tensor totals(const at::Tensor& numbers) const;
  /// The accuracy in one response's numbers (reward::RewardSet).
  [[nodiscard]] std::optional<double> accuracy(std::span<const double> numbers) const {
    return set_.accuracy(numbers);
  }
  /// The accuracy of each response (B,). Fails if a response has none.
  [[nodiscard]] at::Tensor accuracies(const at::Tensor& numbers) const;
  [[nodiscard]] std::optional<std::string> answer(const PromptRow& prompt,
                                                  const ResponseText& response) const;
  [[nodiscard]] const std::vector<reward::RewardSet::Column>& columns() const {
    return set_.columns();
  }
  /// Adds rewards/NAME/mean, max and min, and rewards/NAME/PART, over the responses that have a
  /// value. Warns if, in the first batch that a function scores, no response has some part.
  void describe(const at::Tensor& numbers, Metrics& metrics);

 private:
  [[nodiscard]] std::vector<std::vector<double>> score_collectively(
      std::span<const reward::Response> responses);
  const Context& context_;
  reward::RewardSet& set_;
  std::set<std::string> looked_for_;  // names of columns that were checked
};

/// The rows with these numbers; or all rows.
[[nodiscard]] std::vector<PromptRow> read_prompts(const Rows& rows,
                                                  const std::vector<std::size_t>& numbers);
[[nodiscard]] std::vector<PromptRow> read_prompts(const Rows& rows);

/// Name of the reward model's score in metrics.
inline constexpr const char* kRewardModel = "reward_model";

struct ResponseScores {
  at::Tensor scores;   // (B,) weighted sums
  at::Tensor model;    // (B,) of the reward model alone; undefined without one
  at::Tensor numbers;  // (B, columns); undefined without functions
};
/// Scores of responses; `prompts` have `n` responses each, in order. `by_model` are the reward
/// model's scores, if there is one.
[[nodiscard]] ResponseScores score_responses(const Context& context, const at::Tensor& by_model,
                                             RewardScorer& functions,
                                             const std::vector<PromptRow>& prompts, std::int64_t n,
                                             const Experience& responses);

}  // namespace neap::rlhf
