// Reward-model training: learns from pairs which of two responses is preferred (Bradley-Terry).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "rlhf/experience/experience.h"
#include "rlhf/experience/row_balance.h"
#include "rlhf/trainer/model_update.h"
#include "rlhf/trainer/pairs.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {
namespace {

class RewardTrainer final : public Trainer {
 public:
  explicit RewardTrainer(Context& context)
      : context_(context),
        reward_(context.runtime, context.groups, context.worker_spec(spec::ModelId::kReward)),
        order_(batch_order(context.job, context.data)) {}

  void load() override { reward_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    const spec::Job& job = context_.job;
    Pairs all = read_pairs(context_, context_.data.train,
                           deal_rows(context_, context_.data.train, order_.batch(step), metrics));
    train::read_scores_before_padding(all.sequences, reward_.shape().pad_token_id);
    const auto pairs = static_cast<double>(job.data.train_batch_size);
    {
      const Stopwatch watch(metrics, "update_reward");
      ModelUpdate update(context_, reward_, spec::Body::kPairUpdate, step);
      train::ArrangedBatch arranged = update.arrange(std::move(all.sequences));
      step::Experience<at::Tensor> batch;
      batch.margins = arranged.arranged_rows(all.margins);
      batch.sequences = std::move(arranged.sequences);
      update.run(batch, [pairs](std::int64_t) { return step::LossScale{.sequences = pairs}; });
      update.put(metrics, "train");
    }
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }

  Validation validate(std::int64_t /*step*/) override {
    std::vector<double> sums = {0, 0};
    const std::vector<std::size_t> rows = context_.share_of(held_out().size());
    const Pairs mine = read_pairs(context_, held_out(), Context::to_score(rows));
    const auto pairs = static_cast<double>(held_out().size());
    const at::Tensor scores =
        response_scores(context_, reward_, mine.sequences, spec::PhaseId::kValidate);
    if (!rows.empty()) {
      const bridge::HostScope host;
      const at::Tensor both = scores.to(at::kDouble).view({2, -1});
      sums = {-at::log_sigmoid(both[0] - both[1]).sum().item<double>(),
              static_cast<double>(both[0].gt(both[1]).sum().item<std::int64_t>())};
    }
    context_.data_ranks().sum(sums);
    return {{{"val/loss", sums[0] / pairs}, {"val/accuracy", sums[1] / pairs}}, {}};
  }

  void save(const std::filesystem::path& folder, train::SavedFiles& files) override {
    reward_.save(folder / to_string(spec::ModelId::kReward), context_.save_options(), files);
  }
  void restore(const std::filesystem::path& folder) override {
    reward_.restore(folder / to_string(spec::ModelId::kReward));
  }

 private:
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }

  Context& context_;
  train::ModelWorker reward_;
  data::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Trainer> make_reward_trainer(Context& context) {
  return std::make_unique<RewardTrainer>(context);
}

}  // namespace neap::rlhf
