#include "rlhf/rollout/rollout_records.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/random.h"
#include "reward/ground_truth.h"

namespace neap::rlhf {
namespace {

// Row `i` of RewardScorer::score's result.
std::span<const double> numbers_of(const at::Tensor& numbers, std::int64_t i) {
  if (!numbers.defined()) return {};
  const auto columns = static_cast<std::size_t>(numbers.size(1));
  return {numbers.const_data_ptr<double>() + static_cast<std::size_t>(i) * columns, columns};
}

}  // namespace

report::Rollout make_rollout(const Context& context, const RewardScorer& functions,
                             const PromptRow& prompt, const ResponseText& response, double score,
                             std::span<const double> numbers) {
  report::Rollout out;
  out.prompt = context.tokenizer.decode(prompt.tokens);
  out.response = response.text;
  out.score = score;
  out.tokens = response.tokens;
  out.truncated = response.truncated;
  if (prompt.json != nullptr) {
    if (auto truths = reward::ground_truths(*prompt.json, ""); truths.ok())
      out.ground_truth = std::move(*truths);
    out.data_source = reward::data_source_of(*prompt.json);
  }
  for (std::size_t c = 0; c < numbers.size(); ++c)
    out.rewards.emplace_back(functions.columns()[c].name, numbers[c]);
  if (numbers.empty()) return out;
  if (const auto accuracy = functions.accuracy(numbers))
    out.verdict = *accuracy >= 1 ? "right" : *accuracy <= 0 ? "wrong" : "partly right";
  return out;
}

std::vector<report::Rollout> rollouts_of(const Context& context, const RewardScorer& functions,
                                         const Experience& batch) {
  const bridge::HostScope host;
  const at::Tensor numbers = batch.numbers.defined() ? batch.numbers.contiguous() : batch.numbers;
  std::vector<report::Rollout> out;
  PromptRow prompt;
  std::int64_t read = -1;  // the row that `prompt` has
  for (std::int64_t i = 0; i < batch.sequences.size(); ++i) {
    if (const auto row = batch.rows[i].item<std::int64_t>(); row != read) {
      prompt = read_prompts(context.data.train, {static_cast<std::size_t>(row)}).front();
      read = row;
    }
    report::Rollout rollout =
        make_rollout(context, functions, prompt, response_text(context, batch, i),
                     batch.scores[i].item<double>(), numbers_of(numbers, i));
    if (batch.model_scores.defined() && !functions.empty())
      rollout.rewards.emplace_back(kRewardModel, batch.model_scores[i].item<double>());
    if (context.job.trainer.rollout_token_ids) {
      rollout.prompt_ids = prompt.tokens;
      rollout.response_ids = response_tokens(batch, i);
    }
    out.push_back(std::move(rollout));
  }
  return out;
}

report::Rollout make_prediction(const Context& context, const train::Tokens& prompt,
                                const train::Tokens& response, const at::Tensor& right,
                                const at::Tensor& mask) {
  const bridge::HostScope host;
  const at::Tensor counted = mask.to(at::kFloat).contiguous();
  const at::Tensor hit = right.to(at::kFloat).contiguous();
  const float* trained = counted.const_data_ptr<float>();
  const float* correct = hit.const_data_ptr<float>();
  const auto wrong = [&](std::size_t i) { return trained[i] > 0 && correct[i] == 0; };
  report::Rollout out;
  out.prompt = context.tokenizer.decode(prompt);
  out.tokens = std::ssize(response);
  for (std::size_t first = 0, end = 0; first < response.size(); first = end) {
    while (end < response.size() && wrong(end) == wrong(first)) ++end;
    const auto at = response.begin();
    const std::string text = context.tokenizer.decode(train::Tokens(
        at + static_cast<std::ptrdiff_t>(first), at + static_cast<std::ptrdiff_t>(end)));
    out.response += wrong(first) ? "«" + text + "»" : text;
  }
  out.score = (hit * counted).sum().item<double>() / std::max(counted.sum().item<double>(), 1.0);
  return out;
}

std::set<std::size_t> rows_to_show(std::size_t rows, std::size_t count, std::int64_t seed,
                                   std::int64_t step) {
  constexpr std::uint64_t kShownStream = 0x73686f77ULL;
  const std::size_t wanted = std::min(rows, count);
  std::set<std::size_t> out;
  for (std::size_t row = 0; row < (wanted + 1) / 2; ++row) out.insert(row);
  const std::uint64_t key = random_key(
      {static_cast<std::uint64_t>(seed), kShownStream, static_cast<std::uint64_t>(step)});
  for (std::uint64_t i = 0; out.size() < wanted; ++i) {
    const double u = static_cast<double>(uniform(key, i));
    // Takes the next free row, so that the loop ends for small sets.
    auto row = std::min(static_cast<std::size_t>(u * static_cast<double>(rows)), rows - 1);
    while (out.contains(row)) row = (row + 1) % rows;
    out.insert(row);
  }
  return out;
}

}  // namespace neap::rlhf
