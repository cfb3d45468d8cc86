// Reward-model training: learns from pairs which of two responses is preferred (Bradley-Terry).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "rlhf/model_update.h"
#include "rlhf/pairs.h"
#include "rlhf/trainer.h"
#include "rlhf/update_phases.h"
#include "step/phases.h"

namespace neap::rlhf {
namespace {

class RewardTrainer final : public Trainer {
 public:
  explicit RewardTrainer(Context& context)
      : context_(context),
        reward_(context.runtime, context.ranks, context.worker_spec(spec::ModelId::kReward)),
        order_(batch_order(context.job, context.data)) {}

  void load() override { reward_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    const spec::Job& job = context_.job;
    const std::vector<std::size_t> rows = context_.sharder().of(order_.batch(step));
    const auto pairs = static_cast<double>(job.data.train_batch_size);
    {
      const Stopwatch watch(metrics, "update_reward");
      model::Transformer& model = reward_.model();
      ModelUpdate update(context_, reward_, spec::Body::kPairUpdate, step);
      update.run([&](std::int64_t first, std::int64_t size, const spec::Checkpointing& keep) {
        const step::PairMicroStatistics s = step::pair_micro_batch(
            model.ops(), model.weights(), gather(context_.data.train, rows, first, size),
            margins_of(context_.data.train, rows, first, size), job.center_rewards_coefficient,
            pairs, keep);
        const auto weight = static_cast<double>(size);
        update.add_share("train/loss", s.loss);
        update.add_mean("train/accuracy", s.right / weight, weight);
        update.add_mean("train/margin", s.margin / weight, weight);
      });
      update.put(metrics, "train");
    }
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }

  Validation validate() override {
    std::vector<double> sums = {0, 0};
    double &loss = sums[0], &right = sums[1];
    const std::vector<std::size_t> rows = context_.share_of(held_out().size());
    const auto pairs = static_cast<double>(held_out().size());
    run_phase(context_.runtime, spec::PhaseId::kValidate, [&] {
      const at::NoGradGuard no_grad;
      model::Transformer& model = reward_.model();
      const auto count = static_cast<std::int64_t>(rows.size());
      step::for_each_micro_batch(
          model.ops(), count, context_.job.data.micro_batch_size_per_gpu,
          [&](const step::MicroBatch& micro) {
            const train::Sequences both = gather(held_out(), rows, micro.first, micro.count);
            step::score_phase(
                model.ops(), model.weights(), both, both.size(), false,
                [&](const step::MicroBatch&, const at::Tensor& scores) {
                  const bridge::HostScope host;
                  const at::Tensor fresh =
                      scores.view({2, -1}).narrow(1, micro.seen, micro.fresh()).to(at::kDouble);
                  loss -= at::log_sigmoid(fresh[0] - fresh[1]).sum().item<double>();
                  right += fresh[0].gt(fresh[1]).sum().item<double>();
                });
          });
    });
    context_.ranks.sum(sums);
    return {{{"val/loss", loss / pairs}, {"val/accuracy", right / pairs}}, {}};
  }

  void save(const std::filesystem::path& folder) override {
    reward_.save(folder / "reward", context_.save_options());
  }
  void restore(const std::filesystem::path& folder) override { reward_.restore(folder / "reward"); }

 private:
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }

  [[nodiscard]] train::Sequences gather(const Rows& pairs, const std::vector<std::size_t>& rows,
                                        std::int64_t first, std::int64_t count) const {
    train::Sequences all = gather_pairs(context_, pairs, rows, first, count, count);
    const bridge::HostScope host;
    train::read_scores_before_padding(all, reward_.shape().pad_token_id);
    return all;
  }

  Context& context_;
  train::ModelWorker reward_;
  data::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Trainer> make_reward_trainer(Context& context) {
  return std::make_unique<RewardTrainer>(context);
}

}  // namespace neap::rlhf
