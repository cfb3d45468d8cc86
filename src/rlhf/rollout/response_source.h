// Produces scored responses for a step of PPO or GRPO. It takes batches of prompts in the order of
// the run, as many as a filter needs.
//
// Ranks     each rank answers and scores its share of the prompts; a filter compares the whole
//           batch.
// Threads   one at a time.
// Failure   Error; StepFailure if prompts cannot be read, a reward function fails, or a filter
//           keeps too little.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/batch_order.h"
#include "rlhf/experience/experience.h"
#include "rlhf/experience/ppo_models.h"
#include "rlhf/rollout/reward_scorer.h"
#include "rlhf/trainer/trainer.h"
#include "train/sequences.h"

namespace neap::rlhf {

/// This rank's responses and their prompts, in the same order.
struct Responses {
  std::vector<PromptRow> prompts;
  Experience e;
};

class ResponseSource {
 public:
  /// All arguments must outlive it.
  ResponseSource(Context& context, PpoModels& models, RewardScorer& functions);

  [[nodiscard]] std::int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  /// Batches of prompts that finished steps used: one per step, or more with a filter. An
  /// unfinished step does not count; its batches are used again.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  void restore(std::int64_t batches) { batches_ = batches; }
  void begin_step() { taken_ = batches_; }
  void finish_step() { batches_ = taken_; }

  /// Responds to the next batch of prompts.
  [[nodiscard]] Responses respond(Metrics& metrics);
  /// Returns `scores`, `numbers` and `model_scores` of the responses. `by_model` are the reward
  /// model's scores.
  [[nodiscard]] Experience score(const Responses& responses, const at::Tensor& by_model);
  /// DAPO's dynamic sampling: keeps prompts whose responses have different scores, and takes
  /// batches until there are enough. `kl_coefficient` is that of the KL in the reward, if the
  /// filter compares it.
  [[nodiscard]] Responses varied_responses(double kl_coefficient, Metrics& metrics);

  /// ReMax's greedy responses to the prompts, with their scores. Truncated ones get the same
  /// penalty as samples.
  [[nodiscard]] Experience respond_greedily(const Responses& responses, Metrics& metrics);
  [[nodiscard]] at::Tensor score_baselines(const Responses& responses, const Experience& greedy,
                                           Metrics& metrics);

 private:
  [[nodiscard]] const spec::Job& job() const { return context_.job; }
  /// Called before another batch. Fails if the limit of batches is reached, stops if the run was
  /// interrupted, and logs progress.
  void expect_more(std::int64_t batches, std::int64_t rows) const;
  /// The value that dynamic sampling compares, one per response of the whole batch.
  [[nodiscard]] at::Tensor filter_metric(const Experience& all, double kl_coefficient) const;

  Context& context_;
  PpoModels& models_;
  RewardScorer& functions_;
  data::BatchOrder order_;
  std::int64_t batches_ = 0,
               taken_ = 0;  // batches of finished steps; and including the current step
};

}  // namespace neap::rlhf
