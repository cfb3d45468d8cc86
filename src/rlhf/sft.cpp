// Supervised fine-tuning: cross entropy on the responses.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "rlhf/model_update.h"
#include "rlhf/trainer.h"
#include "rlhf/update_phases.h"
#include "step/phases.h"

namespace neap::rlhf {
namespace {

struct Texts {
  std::vector<train::Tokens> prompts, responses;
  std::vector<train::TokenMask> masks;  // of the responses
};

class SftTrainer final : public Trainer {
 public:
  explicit SftTrainer(Context& context)
      : context_(context),
        actor_(context.runtime, context.ranks, context.worker_spec(spec::ModelId::kActor)),
        train_(read(context.job.data.train_files)),
        order_(context.batch_order(train_.prompts.size())) {
    if (!context.job.data.val_files.empty()) held_out_ = read(context.job.data.val_files);
  }

  void load() override { actor_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }

  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    const train::Sequences batch = gather(train_, context_.sharder().of(order_.batch(step)));
    const double tokens = context_.ranks.sum(batch.mask.sum().item<double>());
    {
      const Stopwatch watch(metrics, "update_actor");
      model::Transformer& model = actor_.model();
      ModelUpdate update(context_, actor_, spec::Body::kCrossEntropyUpdate, step);
      update.run([&](std::int64_t first, std::int64_t count, const spec::Checkpointing& keep) {
        update.add_share("train/loss",
                         step::cross_entropy_micro_batch(model.ops(), model.weights(), batch, first,
                                                         count, tokens, keep));
      });
      update.put(metrics, "train");
    }
    metrics["perf/total_num_tokens"] = tokens;
    return metrics;
  }

  [[nodiscard]] bool can_validate() const override { return !held_out_.prompts.empty(); }

  Validation validate() override {
    std::vector<double> sums = {0, 0};
    double &loss = sums[0], &tokens = sums[1];
    const std::int64_t micro_size = context_.job.data.micro_batch_size_per_gpu;
    const train::Sequences batch = gather(held_out_, context_.share_of(held_out_.prompts.size()));
    run_phase(context_.runtime, spec::PhaseId::kValidate, [&] {
      const at::NoGradGuard no_grad;
      model::Transformer& model = actor_.model();
      step::log_prob_phase(
          model.ops(), model.weights(), batch, micro_size, {},
          [&](const step::MicroBatch& micro, const at::Tensor& log_probs, const at::Tensor&) {
            const bridge::HostScope host;
            const at::Tensor mask = batch.mask.narrow(0, micro.first + micro.seen, micro.fresh());
            loss -= (log_probs * mask).sum().item<double>();
            tokens += mask.sum().item<double>();
          });
    });
    context_.ranks.sum(sums);
    return {{{"val/loss", loss / tokens}, {"val/perplexity", std::exp(loss / tokens)}}, {}};
  }

  void save(const std::filesystem::path& folder) override {
    actor_.save(folder / "actor", context_.save_options());
  }
  void restore(const std::filesystem::path& folder) override { actor_.restore(folder / "actor"); }

 private:
  [[nodiscard]] Texts read(const std::vector<std::string>& files) const {
    const spec::DataConfig& data = context_.job.data;
    Texts out;
    for (const train::TextRow& row : train::read_rows(resolve_all(context_.job, files),
                                                      {data.prompt_key}, {data.response_key})) {
      TrainingText text = encode_training_text(context_, row.fields[0], row.fields[1], row.where);
      out.prompts.push_back(std::move(text.prompt));
      out.responses.push_back(std::move(text.response));
      out.masks.push_back(std::move(text.mask));
    }
    return out;
  }

  [[nodiscard]] train::Sequences gather(const Texts& texts,
                                        const std::vector<std::size_t>& rows) const {
    Texts batch;
    for (const std::size_t row : rows) {
      batch.prompts.push_back(texts.prompts[row]);
      batch.responses.push_back(texts.responses[row]);
      batch.masks.push_back(texts.masks[row]);
    }
    return train::make_sequences(batch.prompts, batch.responses, sequence_shape(context_),
                                 batch.masks);
  }

  Context& context_;
  train::ModelWorker actor_;
  Texts train_, held_out_;
  train::BatchOrder order_;
};

}  // namespace

std::unique_ptr<Trainer> make_sft_trainer(Context& context) {
  return std::make_unique<SftTrainer>(context);
}

}  // namespace neap::rlhf
