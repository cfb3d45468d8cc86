// Where a step of PPO or GRPO gets scored responses from: batches of prompts in the order of the run, as many as a filter
// takes.
//
// Ranks     each answers and scores its share of the prompts; what a filter compares is the whole batch.
// Threads   one at a time.
// Failure   Error; StepFailure where prompts cannot be read, a reward function fails or a filter finds too little.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/batch_order.h"
#include "rlhf/experience.h"
#include "rlhf/ppo_models.h"
#include "rlhf/reward_scorer.h"
#include "rlhf/trainer.h"
#include "train/sequences.h"

namespace neap::rlhf {

/// This rank's responses, and the prompts that they answer in turn.
struct Responses {
  std::vector<PromptRow> prompts;
  Experience e;
};

class ResponseSource {
 public:
  /// All of them outlive it.
  ResponseSource(Context& context, PpoModels& models, RewardScorer& functions);

  [[nodiscard]] std::int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  /// Batches of prompts that the finished steps took, one each or more with a filter. Those of a step that is not
  /// finished do not count: the next one takes them again.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  void restore(std::int64_t batches) { batches_ = batches; }
  void begin_step() { taken_ = batches_; }
  void finish_step() { batches_ = taken_; }

  /// To the next batch of prompts.
  [[nodiscard]] Responses respond(Metrics& metrics);
  /// `scores`, `numbers` and `model_scores` of the responses. `by_model`: the last ones.
  [[nodiscard]] Experience score(const Responses& responses, const at::Tensor& by_model);
  /// Scored responses to prompts whose responses have different scores, of as many batches as it takes: DAPO's dynamic
  /// sampling. `kl_coefficient`: of the KL in the reward, where that is compared.
  [[nodiscard]] Responses varied_responses(double kl_coefficient, Metrics& metrics);

  /// ReMax's greedy responses to the prompts, and what they score, truncated ones with the same penalty as samples.
  [[nodiscard]] Experience respond_greedily(const Responses& responses, Metrics& metrics);
  [[nodiscard]] at::Tensor score_baselines(const Responses& responses, const Experience& greedy,
                                           Metrics& metrics);

 private:
  [[nodiscard]] const spec::Job& job() const { return context_.job; }
  /// Before another batch: fails where so many are too many, stops where the run was interrupted, and says how far it is.
  void expect_more(std::int64_t batches, std::int64_t rows) const;
  /// What dynamic sampling compares, one number a response of the whole batch.
  [[nodiscard]] at::Tensor filter_metric(const Experience& all, double kl_coefficient) const;

  Context& context_;
  PpoModels& models_;
  RewardScorer& functions_;
  data::BatchOrder order_;
  std::int64_t batches_ = 0,
               taken_ = 0;  // of the finished steps, and with those of the step under way
};

}  // namespace neap::rlhf
