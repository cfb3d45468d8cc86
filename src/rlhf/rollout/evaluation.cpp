#include "rlhf/rollout/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/random.h"
#include "rlhf/rollout/rollout_records.h"

namespace neap::rlhf {
namespace {

// Batches of the rollout per part. The tensors of a part are freed before the next part.
constexpr std::int64_t kBatchesPerPart = 8;
constexpr std::string_view kUnknownSource = "unknown";  // verl's name

class Collector {
 public:
  Collector(Context& context, const std::vector<PromptRow>& rows, const EvaluationSetup& setup)
      : context_(context), rows_(rows), setup_(setup) {
    outcomes_.reserve(rows.size() * static_cast<std::size_t>(setup.sampling.n));
  }

  /// Processes rows [first, first + count) of the set.
  void part(std::size_t first, std::size_t count);
  [[nodiscard]] Evaluation finish();

 private:
  [[nodiscard]] Experience respond(const std::vector<PromptRow>& mine, std::size_t first);
  void take_response(const Experience& e, std::int64_t at, std::size_t first);
  void take_divergence(const Experience& e);
  void add_means(Metrics& metrics) const;
  void add_figures(Evaluation& out) const;

  Context& context_;
  const std::vector<PromptRow>& rows_;
  const EvaluationSetup& setup_;
  std::size_t ended_ = 0;  // responses of this rank in earlier parts
  std::vector<reward::Outcome> outcomes_;
  std::vector<at::Tensor> scores_, numbers_, model_scores_, lengths_, truncated_;  // one per part
  std::vector<at::Tensor> divergence_;                                             // (B,) sums
};

Experience Collector::respond(const std::vector<PromptRow>& mine, std::size_t first) {
  Generation generation{spec::PhaseId::kGenerate, setup_.sampling.n,
                        step::sampling_options(setup_.sampling), setup_.key};
  generation.first_prompt = first;
  if (setup_.on_progress)
    generation.on_progress = [&](std::size_t ended) { setup_.on_progress(ended_ + ended); };
  Experience out = generate_responses(context_, setup_.actor, tokens_of(mine), generation);
  ended_ += static_cast<std::size_t>(out.sequences.size());
  if (setup_.add) setup_.add(out);
  at::Tensor by_model;
  if (setup_.reward_model != nullptr)
    by_model = response_scores(context_, *setup_.reward_model, out.sequences);
  ResponseScores scored =
      score_responses(context_, by_model, setup_.functions, mine, setup_.sampling.n, out);
  out.scores = std::move(scored.scores);
  out.model_scores = std::move(scored.model);
  out.numbers = std::move(scored.numbers);
  return out;
}

void Collector::part(std::size_t first, std::size_t count) {
  const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<PromptRow> part(begin, begin + static_cast<std::ptrdiff_t>(count));
  const Experience mine = respond(context_.sharder().of_padded(part), first);
  const std::int64_t n = setup_.sampling.n;
  const auto responses = static_cast<std::int64_t>(count) * n;
  const Experience e = gather_experience(context_, mine, n, responses);
  scores_.push_back(e.scores);
  if (e.numbers.defined()) numbers_.push_back(e.numbers);
  if (e.model_scores.defined()) model_scores_.push_back(e.model_scores);
  lengths_.push_back(e.sequences.mask.sum(-1));
  truncated_.push_back(e.truncated);
  if (e.ref_log_probs.defined()) take_divergence(e);
  for (std::int64_t at = 0; at < responses; ++at) take_response(e, at, first);
}

void Collector::take_divergence(const Experience& e) {
  divergence_.push_back(((e.old_log_probs - e.ref_log_probs) * e.sequences.mask).sum(-1));
}

void Collector::take_response(const Experience& e, std::int64_t at, std::size_t first) {
  const std::int64_t n = setup_.sampling.n;
  const std::size_t row = first + static_cast<std::size_t>(at / n);
  const ResponseText response = response_text(context_, e, at);
  reward::Outcome outcome;
  outcome.score = e.scores[at].item<double>();
  std::span<const double> numbers;
  if (e.numbers.defined()) {
    const auto columns = static_cast<std::size_t>(e.numbers.size(1));
    numbers = {e.numbers.const_data_ptr<double>() + static_cast<std::size_t>(at) * columns,
               columns};
    outcome.accuracy = setup_.functions.accuracy(numbers);
    if (n > 1) outcome.answer = setup_.functions.answer(rows_[row], response);
  }
  report::Rollout sample =
      make_rollout(context_, setup_.functions, rows_[row], response, outcome.score, numbers);
  if (setup_.on_response) setup_.on_response({row, at % n, std::move(sample), outcome, numbers});
  outcomes_.push_back(std::move(outcome));
}

void Collector::add_means(Metrics& metrics) const {
  summarize(metrics, "val/score", at::cat(scores_));
  if (!numbers_.empty()) {
    Metrics rewards;
    setup_.functions.describe(at::cat(numbers_), rewards);
    for (const auto& [name, value] : rewards) metrics["val/" + name] = value;
    if (!model_scores_.empty())
      summarize(metrics, format("val/rewards/{}", kRewardModel), at::cat(model_scores_));
  }
  const at::Tensor lengths = at::cat(lengths_);
  metrics["val/response_length"] = lengths.mean().item<double>();
  metrics["val/truncated_ratio"] = at::cat(truncated_).mean().item<double>();
  if (!divergence_.empty()) {
    const at::Tensor kl = at::cat(divergence_);
    metrics["val/kl_per_response"] = kl.mean().item<double>();
    metrics["val/kl_per_token"] = (kl.sum() / lengths.sum()).item<double>();
  }
}

// Groups rows by data source, in order of first occurrence.
void Collector::add_figures(Evaluation& out) const {
  const std::int64_t n = setup_.sampling.n;
  const auto each = static_cast<std::size_t>(n);
  out.all = {"", rows_.size(), reward::evaluation_figures(outcomes_, n)};
  std::vector<std::string> order;
  std::map<std::string, std::vector<reward::Outcome>> by_source;
  bool named = false;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    std::string source(rows_[row].json ? reward::data_source_of(*rows_[row].json) : "");
    named = named || !source.empty();
    if (source.empty()) source = kUnknownSource;
    if (!by_source.contains(source)) order.push_back(source);
    const auto begin = outcomes_.begin() + static_cast<std::ptrdiff_t>(row * each);
    auto& mine = by_source[source];
    mine.insert(mine.end(), begin, begin + n);
  }
  if (!named) return;
  for (const std::string& source : order) {
    const std::vector<reward::Outcome>& mine = by_source[source];
    out.sources.push_back({source, mine.size() / each, reward::evaluation_figures(mine, n)});
  }
}

Evaluation Collector::finish() {
  Evaluation out;
  add_means(out.metrics);
  add_figures(out);
  const auto has_accuracy = [](const SourceFigures& s) {
    return std::any_of(s.figures.begin(), s.figures.end(),
                       [](const auto& f) { return f.first.starts_with("acc/"); });
  };
  for (const auto& [name, value] : out.all.figures) {
    // Already in val/score/mean.
    if (!name.starts_with("reward/mean@")) out.metrics["val/" + name] = value;
  }
  for (const SourceFigures& source : out.sources) {
    for (const auto& [name, value] : source.figures)
      out.metrics[reward::source_metric(source.source, name, has_accuracy(source))] = value;
  }
  return out;
}

}  // namespace

std::uint64_t validation_key(const spec::Job& job) {
  constexpr std::uint64_t kValidationStream = 0x76616cULL;
  return random_key({static_cast<std::uint64_t>(job.trainer.seed), kValidationStream});
}

Evaluation evaluate(Context& context, const std::vector<PromptRow>& rows,
                    const EvaluationSetup& setup) {
  const std::int64_t ranks = context.job.generating_ranks();
  const std::int64_t together = kBatchesPerPart * context.job.rollout_batch() * ranks;
  const auto part =
      static_cast<std::size_t>(std::max<std::int64_t>(ranks, together / setup.sampling.n));
  Collector collector(context, rows, setup);
  for (std::size_t first = 0; first < rows.size(); first += part)
    collector.part(first, std::min(part, rows.size() - first));
  return collector.finish();
}

}  // namespace neap::rlhf
