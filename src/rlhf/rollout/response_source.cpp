#include "rlhf/rollout/response_source.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/random.h"
#include "rlhf/experience/core_algos.h"
#include "rlhf/experience/row_balance.h"

namespace neap::rlhf {
namespace {

constexpr std::uint64_t kRolloutStream = 0x726f6c6cULL;

// The generated sequences that a filter keeps, batch by batch, on the ranks that generated them.
class KeptSequences {
 public:
  KeptSequences(parallel::Communicator& ranks, std::int64_t n)
      : ranks_(ranks), n_(n), lists_(static_cast<std::size_t>(ranks.size())) {}

  /// Keeps `rows` of a batch. `mine` are this rank's sequences of it.
  void keep(const train::Sequences& mine, const at::Tensor& rows) {
    std::vector<std::int64_t> own;
    const at::Tensor kept = rows.contiguous();
    const auto* row = kept.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < kept.numel(); ++i, ++row, ++count_) {
      const std::int64_t prompt = *row / n_;
      lists_[static_cast<std::size_t>(prompt % ranks_.size())].push_back(count_);
      if (prompt % ranks_.size() == ranks_.rank())
        own.push_back(prompt / ranks_.size() * n_ + *row % n_);
    }
    parts_.emplace_back().sequences = mine;
    const at::Tensor places = at::tensor(own, at::kLong);
    transform_rows(parts_.back(), [&](const at::Tensor& t) { return t.index_select(0, places); });
  }

  /// Assigns the first sequences to ranks and returns this rank's. `counts` are those of the first
  /// sequences.
  [[nodiscard]] train::Sequences deal(Context& context, const parallel::RowDeal& to,
                                      const RowCounts& counts) {
    Experience mine = join(std::move(parts_));
    for (std::vector<std::int64_t>& list : lists_)
      std::erase_if(list, [&](std::int64_t row) { return row >= std::ssize(counts.sequences); });
    const parallel::RowDeal has(ranks_, std::move(lists_));
    transform_rows(mine,
                   [&](const at::Tensor& t) { return t.narrow(0, 0, std::ssize(has.own())); });
    return send_sequences(context, mine.sequences, has, to, counts);
  }

 private:
  parallel::Communicator& ranks_;
  std::int64_t n_, count_ = 0;  // rows so far, over all ranks
  parallel::RowLists lists_;
  std::vector<Experience> parts_;  // sequences of this rank
};

}  // namespace

ResponseSource::ResponseSource(Context& context, PpoModels& models, RewardScorer& functions)
    : context_(context),
      models_(models),
      functions_(functions),
      order_(batch_order(context.job, context.data)) {}

Responses ResponseSource::respond(Metrics& metrics) {
  const std::int64_t batch = taken_++;
  const std::vector<std::size_t> rows = context_.sharder().of(order_.batch(batch));
  Responses responses;
  run_in_step(context_.ranks, [&] { responses.prompts = read_prompts(context_.data.train, rows); });
  const Stopwatch watch(metrics, "gen");
  const auto seed = static_cast<std::uint64_t>(job().trainer.seed);
  step::SamplingOptions sampling = step::sampling_options(job().rollout);
  sampling.log_probs = job().keeps_rollout_log_probs();
  responses.e =
      generate_responses(context_, models_.actor(), tokens_of(responses.prompts),
                         {spec::PhaseId::kGenerate, job().rollout.n, sampling,
                          random_key({seed, kRolloutStream, static_cast<std::uint64_t>(batch)})});
  const std::vector<std::int64_t> numbers(rows.begin(), rows.end());
  responses.e.rows = at::tensor(numbers, at::kLong).repeat_interleave(job().rollout.n);
  return responses;
}

Experience ResponseSource::score(const Responses& responses, const at::Tensor& by_model) {
  ResponseScores scored = score_responses(context_, by_model, functions_, responses.prompts,
                                          job().rollout.n, responses.e);
  Experience out;
  out.scores = penalize_truncated(job().algorithm, scored.scores, responses.e.truncated);
  out.numbers = std::move(scored.numbers);
  out.model_scores = std::move(scored.model);
  return out;
}

void ResponseSource::expect_more(std::int64_t batches, std::int64_t rows) const {
  const std::int64_t most = job().algorithm.filter_groups.max_num_gen_batches;
  const std::int64_t n = job().rollout.n, wanted = job().sequences_per_step();
  if (most > 0 && batches == most) {
    throw StepFailure(
        Status(ErrorCode::kTimeout,
               format("After {} batches only {} of {} prompts have responses with different "
                      "scores; raise algorithm.filter_groups.max_num_gen_batches, or take "
                      "prompts that are neither too easy nor too hard",
                      batches, rows / n, wanted / n)),
        context_.ranks.first());
  }
  // The default has no limit, and a policy that solves nothing would generate forever.
  if (context_.ranks.any(InterruptScope::requested())) throw StepInterrupted();
  if (batches > 1 && context_.ranks.first()) {
    log::info(
        format("{} batches of prompts generated: {} of {} prompts have responses with "
               "different scores; generating more",
               batches, rows / n, wanted / n));
  }
}

Responses ResponseSource::varied_responses(double kl_coefficient, Metrics& metrics) {
  const std::int64_t n = job().rollout.n, wanted = job().sequences_per_step();
  std::vector<Experience> kept;
  KeptSequences sequences(context_.data_ranks(), n);
  std::int64_t rows = 0, batches = 0;
  for (; rows < wanted; ++batches) {
    expect_more(batches, rows);
    Responses responses = respond(metrics);
    {
      const Stopwatch watch(metrics, "reward");
      take_rows(responses.e,
                score(responses, models_.scores(responses.e.sequences, spec::PhaseId::kRewards)));
    }
    if (job().filters_by_kl()) models_.add_log_probs(responses.e, metrics);
    Experience all = gather_numbers(context_, responses.e, n, wanted);
    const at::Tensor varied = rows_of_varied_groups(filter_metric(all, kl_coefficient), n);
    transform_rows(all, [&](const at::Tensor& t) { return t.index_select(0, varied); });
    sequences.keep(responses.e.sequences, varied);
    rows += varied.numel();
    kept.push_back(std::move(all));
  }
  metrics["train/num_gen_batches"] = static_cast<double>(batches);
  Responses out{{}, join(std::move(kept))};
  transform_rows(out.e, [&](const at::Tensor& t) { return t.narrow(0, 0, wanted); });
  const RowCounts counts(out.e.sequences);
  const parallel::RowDeal deal = generated_rows(context_, counts);
  transform_rows(out.e, [&](const at::Tensor& t) { return deal.pick(t); });
  out.e.sequences = sequences.deal(context_, deal, counts);
  std::vector<std::size_t> prompts;
  for (std::int64_t i = 0; i < out.e.rows.size(0); i += n)
    prompts.push_back(static_cast<std::size_t>(out.e.rows[i].item<std::int64_t>()));
  run_in_step(context_.ranks, [&] { out.prompts = read_prompts(context_.data.train, prompts); });
  return out;
}

at::Tensor ResponseSource::filter_metric(const Experience& all, double kl_coefficient) const {
  if (job().filters_by_kl()) {
    return apply_kl_penalty(place_at_end(all.scores, all.sequences.mask), all.old_log_probs,
                            all.ref_log_probs, all.sequences.mask, kl_coefficient,
                            job().algorithm.kl_penalty)
        .token_rewards.sum(-1);
  }
  return job().algorithm.filter_groups.metric == "acc" ? functions_.accuracies(all.numbers)
                                                       : all.scores;
}

Experience ResponseSource::respond_greedily(const Responses& responses, Metrics& metrics) {
  const Stopwatch watch(metrics, "gen_max");
  return generate_responses(context_, models_.actor(), tokens_of(responses.prompts),
                            {spec::PhaseId::kGenerateBaseline, 1, step::greedy_sampling(), 0});
}

at::Tensor ResponseSource::score_baselines(const Responses& responses, const Experience& greedy,
                                           Metrics& metrics) {
  const Stopwatch watch(metrics, "reward");
  const at::Tensor by_model = models_.scores(greedy.sequences, spec::PhaseId::kBaselineRewards);
  const at::Tensor scores =
      score_responses(context_, by_model, functions_, responses.prompts, 1, greedy).scores;
  return penalize_truncated(job().algorithm, scores, greedy.truncated)
      .repeat_interleave(job().rollout.n);
}

}  // namespace neap::rlhf
