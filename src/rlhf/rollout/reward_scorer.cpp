#include "rlhf/rollout/reward_scorer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/log.h"
#include "bridge/runtime.h"
#include "rlhf/experience/experience.h"

namespace neap::rlhf {
namespace {

// Divides prompts for scoring among pipeline stages, and within a stage among context-parallel
// ranks, which all have the same responses.
class AnsweringShare {
 public:
  explicit AnsweringShare(const Context& context)
      : stages_(context.groups.along(spec::Axis::kPipe)), context_(context.groups.context()) {}

  // The number of prompts on the rank with the largest share.
  [[nodiscard]] std::size_t most_of(std::size_t prompts) const {
    return context_.most_of(stages_.most_of(prompts));
  }
  [[nodiscard]] std::size_t global(std::size_t local) const {
    return stages_.global(context_.global(local));
  }
  // (prompts n, ...) from every rank's (most n, ...).
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, std::size_t prompts,
                                  std::int64_t n) const {
    const auto rows = [&](const at::Tensor& t, std::size_t of) {
      return t.narrow(0, 0, static_cast<std::int64_t>(of) * n).contiguous();
    };
    const at::Tensor of_stage = rows(context_.gather(mine, n), stages_.most_of(prompts));
    return rows(stages_.gather(of_stage, n), prompts);
  }

 private:
  parallel::BatchSharder stages_, context_;
};

}  // namespace

at::Tensor RewardScorer::score(const std::vector<PromptRow>& prompts, std::int64_t n,
                               const Experience& e) {
  const AnsweringShare answering(context_);
  const auto rows = static_cast<std::int64_t>(answering.most_of(prompts.size())) * n;
  std::vector<ResponseText> texts;
  std::vector<reward::Response> responses;
  texts.reserve(static_cast<std::size_t>(rows));  // reserved, because responses refer to elements
  for (std::size_t i = 0; answering.global(i) < prompts.size(); ++i) {
    const PromptRow& prompt = prompts[answering.global(i)];
    const std::int64_t first = static_cast<std::int64_t>(answering.global(i)) * n;
    for (std::int64_t k = 0; k < n; ++k) {
      const ResponseText& text = texts.emplace_back(response_text(context_, e, first + k));
      responses.push_back(
          {prompt.json.get(), text.text, text.tokens, text.truncated, prompt.where});
    }
  }
  const auto numbers = score_collectively(responses);
  const bridge::HostScope host;
  const auto columns = static_cast<std::int64_t>(set_.columns().size());
  // All ranks need the same number of rows; surplus rows are dropped.
  at::Tensor out = at::zeros({rows, columns}, at::TensorOptions().dtype(at::kDouble));
  auto* to = out.mutable_data_ptr<double>();
  for (const std::vector<double>& row : numbers) to = std::copy(row.begin(), row.end(), to);
  return answering.gather(out, prompts.size(), n);
}

at::Tensor RewardScorer::totals(const at::Tensor& numbers) const {
  const bridge::HostScope host;
  at::Tensor out = at::empty({numbers.size(0)}, at::TensorOptions().dtype(at::kFloat));
  const auto columns = static_cast<std::size_t>(numbers.size(1));
  const auto* from = numbers.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < numbers.size(0); ++i, from += columns)
    to[i] = static_cast<float>(set_.total({from, columns}));
  return out;
}

at::Tensor RewardScorer::accuracies(const at::Tensor& numbers) const {
  const bridge::HostScope host;
  const at::Tensor all = numbers.contiguous();
  at::Tensor out = at::empty({all.size(0)}, at::TensorOptions().dtype(at::kFloat));
  const auto columns = static_cast<std::size_t>(all.size(1));
  const auto* from = all.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < all.size(0); ++i, from += columns) {
    const std::optional<double> value = set_.accuracy({from, columns});
    if (!value)
      throw Error(ErrorCode::kInvalidArgument,
                  "algorithm.filter_groups.metric is \"acc\", but no reward function tells the "
                  "accuracy of a response (docs/rewards.md)");
    to[i] = static_cast<float>(*value);
  }
  return out;
}

std::optional<std::string> RewardScorer::answer(const PromptRow& prompt,
                                                const ResponseText& response) const {
  return set_.answer({prompt.json.get(), response.text, response.tokens, response.truncated});
}

void RewardScorer::describe(const at::Tensor& numbers, Metrics& metrics) {
  const reward::RewardSet::Column* function = nullptr;
  bool scored = false;  // scored by that function
  for (std::size_t c = 0; c < set_.columns().size(); ++c) {
    const reward::RewardSet::Column& column = set_.columns()[c];
    const at::Tensor all = numbers.select(1, static_cast<std::int64_t>(c));
    const at::Tensor given = all.masked_select(all.isnan().logical_not());
    const bool any = given.numel() > 0;
    if (!column.part) {
      function = &column;
      scored = any;
    }
    // Checked once, because later batches may lack parts that only some responses have.
    if (scored && looked_for_.insert(column.name).second && !any && context_.ranks.first()) {
      log::warn(
          format("Reward \"{}\": no reply to the first batch has a number \"{}\", which log "
                 "names",
                 function->name, column.name.substr(function->name.size() + 1)));
    }
    if (!any) continue;
    if (column.part) {
      metrics["rewards/" + column.name] = given.mean().item<double>();
    } else {
      summarize(metrics, "rewards/" + column.name, given);
    }
  }
}

std::vector<std::vector<double>> RewardScorer::score_collectively(
    std::span<const reward::Response> responses) {
  std::vector<std::vector<double>> numbers;
  if (context_.progress != nullptr) context_.progress->begin_part("reward functions");
  // Tensor-parallel ranks have the same responses. One of them scores, because a second call could
  // give another result.
  parallel::Communicator& alike = context_.groups.tensor();
  run_in_step(context_.ranks, [&] {
    if (alike.first()) numbers = value_or_throw(set_.score(responses));
  });
  if (alike.alone() || responses.empty()) return numbers;
  const bridge::HostScope host;
  const std::size_t columns = set_.columns().size();
  std::vector<double> flat;
  for (const std::vector<double>& row : numbers) flat.insert(flat.end(), row.begin(), row.end());
  flat.resize(responses.size() * columns);
  alike.broadcast(at::from_blob(flat.data(), {std::ssize(flat)}, at::dtype(at::kDouble)), 0);
  numbers.clear();
  for (std::size_t at = 0; at < flat.size(); at += columns)
    numbers.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                         flat.begin() + static_cast<std::ptrdiff_t>(at + columns));
  return numbers;
}

std::vector<PromptRow> read_prompts(const Rows& rows, const std::vector<std::size_t>& numbers) {
  std::vector<PromptRow> out;
  for (const std::size_t number : numbers) {
    data::StoredRow row = rows.at(number);
    PromptRow prompt{std::move(row.texts.at(0)), nullptr};
    if (!row.json.empty()) {
      prompt.json =
          std::make_shared<const Json>(value_or_throw(parse_json(row.json, "a stored row")));
      prompt.where = rows.files().where(number);
    }
    out.push_back(std::move(prompt));
  }
  return out;
}

std::vector<PromptRow> read_prompts(const Rows& rows) {
  std::vector<std::size_t> all(rows.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return read_prompts(rows, all);
}

ResponseScores score_responses(const Context& context, const at::Tensor& by_model,
                               RewardScorer& functions, const std::vector<PromptRow>& prompts,
                               std::int64_t n, const Experience& responses) {
  ResponseScores out;
  if (by_model.defined()) {
    out.model = by_model;
    out.scores = out.model * context.job.reward_model_weight;
  }
  if (functions.empty()) return out;
  out.numbers = functions.score(prompts, n, responses);
  const at::Tensor totals = functions.totals(out.numbers);
  out.scores = out.scores.defined() ? out.scores + totals : totals;
  return out;
}

train::Tokens response_tokens(const Experience& e, std::int64_t row) {
  const at::Tensor tokens = e.sequences.tokens[row].contiguous();
  const auto* const first = tokens.const_data_ptr<std::int32_t>();
  const auto count = e.sequences.mask[row].sum().item<std::int64_t>();
  const std::int64_t end = e.sequences.last[row].item<std::int64_t>() + 1;
  return {first + end - count, first + end};
}

ResponseText response_text(const Context& context, const Experience& e, std::int64_t row) {
  train::Tokens ids = response_tokens(e, row);
  ResponseText out;
  out.tokens = std::ssize(ids);
  out.truncated = e.truncated[row].item<float>() != 0;
  if (!ids.empty() && context.text.is_end(ids.back())) ids.pop_back();
  out.text = context.tokenizer.decode(ids);
  return out;
}

}  // namespace neap::rlhf
