// Executes a phase with data and libtorch: the backend that step/pipeline/runner.h needs.
//
// Threads   one at a time.
// Failure   Error; c10::Error from libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/progress.h"
#include "ops/transformer.h"
#include "rollout/generation.h"
#include "spec/job/job.h"
#include "spec/recipe/recipe.h"
#include "step/pipeline/runner.h"
#include "train/optimizer.h"

namespace neap::rlhf {

/// The inputs of a training phase.
struct LiveTraining {
  train::Optimizer* optimizer = nullptr;
  const spec::Checkpointing* checkpointing = nullptr;
  double max_norm = 0;  ///< maximum gradient norm; 0: no clipping
  step::UpdateRange updates;
  std::function<double(std::int64_t update)> learning_rate;
  /// The loss denominators of the mini-batch that starts with this rank's row `first`.
  std::function<step::LossScale(std::int64_t first)> scale;
  std::function<void(step::LossNumbers)> take_numbers;
  /// Calls visit(unit) for every unit, or part of a unit, while its tensors are on the device.
  using VisitPart = std::function<void(const train::OptimizerUnit&)>;
  std::function<void(const VisitPart&)> for_each_part;
  /// All-gathers the weights after other ranks have updated their shards.
  std::function<void()> gather_weights;
};

/// The inputs of a generation phase.
struct LiveGeneration {
  ops::AnyKvCache& cache;
  const std::vector<rollout::Prompt>& prompts;
  const rollout::GenerateOptions& options;
};

class LiveBackend {
 public:
  using Ops = ops::AtenOps;
  /// All arguments must outlive the backend. `experience` is arranged as the phase needs it.
  /// `progress`, if not null, shows the micro-batches.
  LiveBackend(const spec::Job& job, ops::Transformer& model,
              const step::Experience<at::Tensor>& experience, LiveTraining training = {},
              Progress* progress = nullptr);
  /// For a generation phase. All arguments must outlive the backend.
  LiveBackend(const spec::Job& job, ops::Transformer& model, const LiveGeneration& generation);

  /// Runs the body of an open phase.
  void run(const spec::Phase& phase);

  /// Concatenated results of log-probabilities and scores, on the host; undefined if the phase has
  /// none.
  [[nodiscard]] at::Tensor log_probs() const { return join(log_probs_); }
  [[nodiscard]] at::Tensor entropies() const { return join(entropies_); }
  [[nodiscard]] at::Tensor right() const { return join(right_); }
  [[nodiscard]] at::Tensor scores() const { return join(scores_); }
  /// The responses of a generation, one per prompt, in order.
  [[nodiscard]] std::vector<rollout::Response> take_responses() { return std::move(responses_); }
  /// The mean gradient norm before clipping, and the last learning rate.
  [[nodiscard]] double gradient_norm() const;
  [[nodiscard]] double learning_rate() const { return learning_rate_; }
  /// Updates that were skipped because their gradient norm was not finite.
  [[nodiscard]] std::int64_t skipped_updates() const { return skipped_; }
  /// Sets the mini-batches of the next run.
  void set_updates(const step::UpdateRange& updates) { training_.updates = updates; }

  // ---- step::Backend ----
  [[nodiscard]] Ops& ops() { return model_.ops(); }
  [[nodiscard]] const spec::Job& job() const { return job_; }
  [[nodiscard]] const step::Weights<at::Tensor>& weights() const { return model_.weights(); }
  [[nodiscard]] const step::Experience<at::Tensor>& experience() const { return *experience_; }
  void take_log_probs(const step::LogProbs<at::Tensor>& values);
  void take_scores(const at::Tensor& scores);
  template <class Visit>
  void for_each_generation(const spec::Phase&, const Visit& visit) {
    std::visit(
        [&](auto& cache) {
          rollout::LiveSource source(model_, cache, generation_->prompts, generation_->options);
          const rollout::GraphScope graphs(model_, generation_->options);
          visit(cache, source);
          responses_ = source.take_responses();
        },
        generation_->cache);
  }
  [[nodiscard]] const spec::Checkpointing& checkpointing() const {
    return *training_.checkpointing;
  }
  [[nodiscard]] const std::vector<train::OptimizerUnit>& units() const {
    return training_.optimizer->with_gradients();
  }
  [[nodiscard]] const std::vector<train::OptimizerUnit>& pieces() const {
    return training_.optimizer->pieces();
  }
  [[nodiscard]] step::UpdateRange updates(const spec::Phase&) const { return training_.updates; }
  [[nodiscard]] step::LossScale scale(std::int64_t first);
  void take_numbers(step::KeptNumbers<at::Tensor> numbers);
  void read_numbers();
  [[nodiscard]] std::int64_t further_groups(std::int64_t own) const {
    return training_.optimizer->further_groups(own);
  }
  template <class Visit>
  void beside(const Visit&) {}
  void reduce_gradients() { training_.optimizer->reduce_gradients(); }
  [[nodiscard]] std::vector<double> all_norms(std::vector<double> own) const {
    return training_.optimizer->all_norms(std::move(own));
  }
  [[nodiscard]] std::optional<step::Update> begin_step(std::int64_t update, double norm);
  void for_each_part(const LiveTraining::VisitPart& visit) { training_.for_each_part(visit); }
  void gather_weights() { training_.gather_weights(); }

 private:
  [[nodiscard]] static at::Tensor join(const std::vector<at::Tensor>& parts);
  void begin_progress(const spec::Phase& phase);
  void end_micro_batch() {
    if (progress_ != nullptr) progress_->advance_part();
  }

  const spec::Job& job_;
  ops::Transformer& model_;
  const step::Experience<at::Tensor>* experience_ = nullptr;
  LiveTraining training_;
  Progress* progress_ = nullptr;
  std::optional<LiveGeneration> generation_;
  std::vector<at::Tensor> log_probs_, entropies_, right_, scores_;
  std::vector<step::KeptNumbers<at::Tensor>> numbers_;  // of the mini-batch
  std::vector<rollout::Response> responses_;
  double norms_ = 0, learning_rate_ = 0;
  std::int64_t steps_ = 0, skipped_ = 0;
};

}  // namespace neap::rlhf
