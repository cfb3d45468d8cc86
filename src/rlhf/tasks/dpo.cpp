// Direct preference optimization: the actor learns from preference pairs, relative to a frozen
// reference.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "ops/aten_ops.h"
#include "rlhf/experience/experience.h"
#include "rlhf/experience/reference_log_probs.h"
#include "rlhf/experience/row_balance.h"
#include "rlhf/trainer/model_update.h"
#include "rlhf/trainer/pairs.h"
#include "rlhf/trainer/trainer.h"
#include "step/training/preference.h"

namespace neap::rlhf {
namespace {

class DpoTrainer final : public Trainer {
 public:
  explicit DpoTrainer(Context& context)
      : context_(context),
        actor_(context.runtime, context.groups, context.worker_spec(spec::ModelId::kActor)),
        order_(batch_order(context.job, context.data)) {
    if (context.recipe.find(spec::ModelId::kReference) != nullptr &&
        !context.job.precomputes_reference())
      reference_.emplace(context.runtime, context.model_groups.of(spec::ModelId::kReference),
                         context.worker_spec(spec::ModelId::kReference));
  }

  void precompute() override {
    if (context_.job.precomputes_reference()) known_ = compute_reference_log_probs(context_);
  }
  void load() override {
    actor_.load();
    if (reference_) reference_->load();
  }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    const std::vector<std::size_t> rows =
        deal_rows(context_, context_.data.train, order_.batch(step), metrics);
    Pairs mine = read_pairs(context_, context_.data.train, rows);
    ModelUpdate update(context_, actor_, spec::Body::kPreferenceUpdate, step);
    step::Experience<at::Tensor> batch =
        with_reference(std::move(mine.sequences), known_.train, rows, metrics);
    {
      train::ArrangedBatch arranged = update.arrange(std::move(batch.sequences));
      batch.reference_sums = arranged.arranged(batch.reference_sums);
      batch.sequences = std::move(arranged.sequences);
    }
    const Stopwatch watch(metrics, "update_actor");
    const auto pairs = static_cast<double>(context_.job.data.train_batch_size);
    update.run(batch, [pairs](std::int64_t) { return step::LossScale{.sequences = pairs}; });
    update.put(metrics, "train");
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }

  Validation validate(std::int64_t /*step*/) override {
    const std::vector<std::size_t> rows = context_.share_of(held_out().size());
    const std::vector<std::size_t> scored = Context::to_score(rows);
    Pairs mine = read_pairs(context_, held_out(), scored);
    const auto pairs = static_cast<double>(held_out().size());
    std::vector<double> sums(6, 0);
    Metrics timings;  // not used here
    const step::Experience<at::Tensor> batch =
        with_reference(std::move(mine.sequences), known_.held_out, scored, timings);
    const at::Tensor log_probs =
        response_log_probs(context_, actor_.model(), batch.sequences, spec::PhaseId::kValidate)
            .log_probs;
    if (!rows.empty()) {
      const bridge::HostScope host;
      const at::NoGradGuard no_grad;
      ops::AtenOps ops(at::kCPU);
      const auto s = step::preference_loss(ops, log_probs, batch.sequences.mask,
                                           batch.reference_sums, context_.job.dpo, pairs)
                         .statistics;
      sums = step::read_values(ops, {s.loss, s.chosen_reward, s.rejected_reward, s.right,
                                     s.chosen_log_prob, s.rejected_log_prob});
    }
    context_.data_ranks().sum(sums);
    Validation out;
    out.metrics["val/loss"] = sums[0];
    for (const auto& [name, value] : step::preference_means<double>(
             {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]}, pairs))
      out.metrics[std::string("val/") + name] = value;
    return out;
  }

  void save(const std::filesystem::path& folder, train::SavedFiles& files) override {
    actor_.save(folder / to_string(spec::ModelId::kActor), context_.save_options(), files);
  }
  void restore(const std::filesystem::path& folder) override {
    if (reference_) reference_->load();
    actor_.restore(folder / to_string(spec::ModelId::kActor));
  }

 private:
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }

  // Adds the reference's log-probabilities: those of `rows` in `known`, or computed in phase
  // "ref_logp".
  [[nodiscard]] step::Experience<at::Tensor> with_reference(train::Sequences sequences,
                                                            const at::Tensor& known,
                                                            const std::vector<std::size_t>& rows,
                                                            Metrics& metrics) {
    step::Experience<at::Tensor> out;
    if (known.defined()) {
      out.sequences = std::move(sequences);
      out.reference_sums = select_pairs(known, rows);
      return out;
    }
    const Stopwatch watch(metrics, "ref");
    ops::Transformer& reference = reference_ ? reference_->model() : actor_.base();
    const at::Tensor log_probs =
        response_log_probs(context_, reference, sequences, spec::PhaseId::kReferenceLogProbs)
            .log_probs;
    const bridge::HostScope host;
    out.reference_sums = log_probs.sum(-1);
    out.sequences = std::move(sequences);
    return out;
  }

  Context& context_;
  train::ModelWorker actor_;
  std::optional<train::ModelWorker> reference_;
  ReferenceLogProbs known_;  // undefined: computed with each batch
  data::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Trainer> make_dpo_trainer(Context& context) {
  return std::make_unique<DpoTrainer>(context);
}

}  // namespace neap::rlhf
