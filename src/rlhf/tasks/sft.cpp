// Supervised fine-tuning: cross entropy on the responses.
#include <ATen/ATen.h>

#include <cmath>

#include "rlhf/experience/experience.h"
#include "rlhf/experience/row_balance.h"
#include "rlhf/rollout/rollout_records.h"
#include "rlhf/trainer/model_update.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {
namespace {

class SftTrainer final : public Trainer {
 public:
  explicit SftTrainer(Context& context)
      : context_(context),
        actor_(context.runtime, context.groups, context.worker_spec(spec::ModelId::kActor)),
        order_(batch_order(context.job, context.data)) {}

  void load() override { actor_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    train::Sequences rows = gather(
        context_.data.train, deal_rows(context_, context_.data.train, order_.batch(step), metrics));
    const double tokens = context_.data_ranks().sum(rows.mask.sum().item<double>());
    {
      const Stopwatch watch(metrics, "update_actor");
      ModelUpdate update(context_, actor_, spec::Body::kCrossEntropyUpdate, step);
      step::Experience<at::Tensor> batch;
      batch.sequences = update.arrange(std::move(rows)).sequences;
      update.run(batch, [tokens](std::int64_t) { return step::LossScale{.tokens = tokens}; });
      update.put(metrics, "train");
    }
    metrics["perf/total_num_tokens"] = tokens;
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }

  Validation validate(std::int64_t step) override {
    std::vector<double> sums = {0, 0, 0};
    double &loss = sums[0], &tokens = sums[1], &right = sums[2];
    Validation result;
    const std::vector<std::size_t> mine = context_.share_of(held_out().size());
    const train::Sequences batch = gather(held_out(), Context::to_score(mine));
    const TokenLogProbs out =
        response_log_probs(context_, actor_.model(), batch, spec::PhaseId::kValidate);
    if (!mine.empty()) {
      loss = -out.log_probs.sum(at::kDouble).item<double>();
      tokens = batch.mask.sum(at::kDouble).item<double>();
      right = out.right.sum(at::kDouble).item<double>();
      if (context_.ranks.first()) result.samples = samples(mine, batch.mask, out.right, step);
    }
    context_.data_ranks().sum(sums);
    result.metrics = {{"val/loss", loss / tokens},
                      {"val/perplexity", std::exp(loss / tokens)},
                      {"val/mean_token_accuracy", right / tokens}};
    return result;
  }

  void save(const std::filesystem::path& folder, train::SavedFiles& files) override {
    actor_.save(folder / to_string(spec::ModelId::kActor), context_.save_options(), files);
  }
  void restore(const std::filesystem::path& folder) override {
    actor_.restore(folder / to_string(spec::ModelId::kActor));
  }

 private:
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }

  [[nodiscard]] train::Sequences gather(const Rows& rows,
                                        const std::vector<std::size_t>& numbers) const {
    std::vector<train::Tokens> prompts, responses;
    std::vector<train::TokenMask> masks;
    run_in_step(context_.ranks, [&] {
      for (const std::size_t number : numbers) {
        data::StoredRow row = rows.at(number);
        prompts.push_back(std::move(row.texts.at(0)));
        responses.push_back(std::move(row.texts.at(1)));
        masks.push_back(std::move(row.mask));
      }
    });
    if (numbers.empty()) return {};
    return train::make_sequences(prompts, responses, sequence_shape(context_), masks);
  }

  // Sample texts of the held-out rows `numbers`. The tensors have one row per number.
  [[nodiscard]] std::vector<report::Rollout> samples(const std::vector<std::size_t>& numbers,
                                                     const at::Tensor& masks,
                                                     const at::Tensor& right,
                                                     std::int64_t step) const {
    const spec::TrainerConfig& config = context_.job.trainer;
    std::vector<report::Rollout> out;
    for (const std::size_t i : rows_to_show(
             numbers.size(), static_cast<std::size_t>(config.val_samples), config.seed, step)) {
      const data::StoredRow row = held_out().at(numbers[i]);
      const auto at = static_cast<std::int64_t>(i);
      out.push_back(
          make_prediction(context_, row.texts.at(0), row.texts.at(1), right[at], masks[at]));
    }
    return out;
  }

  Context& context_;
  train::ModelWorker actor_;
  data::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Trainer> make_sft_trainer(Context& context) {
  return std::make_unique<SftTrainer>(context);
}

}  // namespace neap::rlhf
