// The reward model: learns from pairs which of two responses people like (Bradley-Terry).
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "rlhf/core_algos.h"
#include "rlhf/stage.h"
#include "train/dataset.h"

namespace neap::rlhf {
namespace {

struct Pairs {
  std::vector<train::Tokens> prompts, chosen, rejected;
};

class RewardStage final : public Stage {
 public:
  explicit RewardStage(Context& context)
      : context_(context),
        reward_(context.runtime, context.ranks,
                {"reward", context.job.resolve(context.job.actor_model.path), spec::Head::kScalar,
                 context.job.actor_model.lora, true, context.job.actor.optim,
                 static_cast<std::uint64_t>(context.job.trainer.seed), /*init_head=*/true}),
        train_(read(context.job.data.train_files)),
        order_(train_.prompts.size(), static_cast<std::size_t>(context.job.data.train_batch_size),
               context.job.data.shuffle, static_cast<std::uint64_t>(context.job.trainer.seed)) {
    if (!context.job.data.val_files.empty()) held_out_ = read(context.job.data.val_files);
  }

  void load() override { reward_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    const spec::Job& job = context_.job;
    const std::vector<std::size_t> rows = context_.share().of(order_.batch(step));
    const auto pairs = static_cast<double>(job.data.train_batch_size);
    std::vector<double> sums = {0, 0, 0};
    double &loss = sums[0], &right = sums[1], &margin = sums[2];
    {
      const Stopwatch watch(metrics, "update_reward");
      const auto phase = context_.runtime.phase("train");
      train::AdamW& optimizer = reward_.optimizer();
      optimizer.zero_grads();
      for (std::size_t at = 0; at < rows.size(); at += micro_size()) {
        const train::Sequences micro = gather(train_, rows, at);
        const auto tape =
            reward_.model().forward_train(model::Batch::padded(micro.tokens),
                                          {job.actor_model.enable_gradient_checkpointing, nullptr});
        const at::Tensor last = micro.last_rows();
        at::Tensor scores = reward_.model().scores(tape->hidden(), last).requires_grad_();
        const at::Tensor both = scores.view({2, -1});  // (chosen and rejected, pairs)
        const double share = static_cast<double>(both.size(1)) / pairs;
        const at::Tensor micro_loss = pairwise_loss(both[0], both[1]) * share;
        const at::Tensor d_scores = torch::autograd::grad({micro_loss}, {scores})[0];
        tape->backward(reward_.model().scores_backward(tape->hidden(), last, d_scores));
        loss += micro_loss.item<double>();
        const at::Tensor difference = (both[0] - both[1]).detach();
        right += difference.gt(0).sum().item<double>();
        margin += difference.sum().item<double>();
      }
      const double lr = train::learning_rate(job.actor.optim, step, context_.total_steps);
      metrics["train/grad_norm"] = optimizer.reduce_grads(job.actor.grad_clip);
      metrics["train/lr"] = lr;
      optimizer.step(lr);
    }
    context_.ranks.sum(sums);
    metrics["train/loss"] = loss;
    metrics["train/accuracy"] = right / pairs;
    metrics["train/margin"] = margin / pairs;
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return !held_out_.prompts.empty(); }

  Validation validate() override {
    std::vector<double> sums = {0, 0};
    double &loss = sums[0], &right = sums[1];
    std::vector<std::size_t> rows(held_out_.prompts.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
    const auto pairs = static_cast<double>(rows.size());
    rows = context_.share().of(rows);
    auto phase = context_.runtime.phase("validate");
    const auto count = static_cast<std::int64_t>(rows.size());
    for (const train::MicroBatch& batch :
         train::micro_batches(count, context_.job.data.micro_batch_size_per_gpu)) {
      const train::Sequences micro = gather(held_out_, rows, static_cast<std::size_t>(batch.first));
      const at::Tensor hidden = reward_.model().forward(model::Batch::padded(micro.tokens));
      const at::Tensor scores = reward_.model().scores(hidden, micro.last_rows());
      const at::Tensor both = scores.view({2, -1}).narrow(1, batch.seen, batch.fresh());
      loss += pairwise_loss(both[0], both[1]).item<double>() * static_cast<double>(batch.fresh());
      right += both[0].gt(both[1]).sum().item<double>();
    }
    phase.reset();
    context_.ranks.sum(sums);
    return {{{"val/loss", loss / pairs}, {"val/accuracy", right / pairs}}, {}};
  }

  void save(const std::filesystem::path& folder) override {
    reward_.save(folder / "reward", context_.tokenizer_folder);
  }
  void restore(const std::filesystem::path& folder) override { reward_.restore(folder / "reward"); }

 private:
  [[nodiscard]] std::size_t micro_size() const {
    return static_cast<std::size_t>(context_.job.data.micro_batch_size_per_gpu);
  }

  [[nodiscard]] Pairs read(const std::vector<std::string>& files) const {
    const spec::DataConfig& data = context_.job.data;
    Pairs out;
    for (const train::TextRow& row :
         train::read_rows(resolve_all(context_.job, files),
                          {data.prompt_key, data.chosen_key, data.rejected_key})) {
      out.prompts.push_back(encode_prompt(context_, row.fields[0], row.where));
      out.chosen.push_back(encode_response(context_, row.fields[1], row.where));
      out.rejected.push_back(encode_response(context_, row.fields[2], row.where));
    }
    return out;
  }

  /// A micro batch from `rows` at `first`: all chosen, then all rejected.
  [[nodiscard]] train::Sequences gather(const Pairs& pairs, const std::vector<std::size_t>& rows,
                                        std::size_t first) const {
    const std::size_t end = std::min(first + micro_size(), rows.size());
    std::vector<train::Tokens> prompts, responses;
    for (const auto* side : {&pairs.chosen, &pairs.rejected}) {
      for (std::size_t i = first; i < end; ++i) {
        prompts.push_back(pairs.prompts[rows[i]]);
        responses.push_back((*side)[rows[i]]);
      }
    }
    const bridge::HostScope host;
    train::Sequences all = train::make_sequences(prompts, responses, sequence_shape(context_));
    train::read_scores_before_padding(all, reward_.shape().pad_token_id);
    return all.slice(0, all.size(), context_.runtime.device());
  }

  Context& context_;
  train::Role reward_;
  Pairs train_, held_out_;
  train::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Stage> make_reward_stage(Context& context) {
  return std::make_unique<RewardStage>(context);
}

}  // namespace neap::rlhf
