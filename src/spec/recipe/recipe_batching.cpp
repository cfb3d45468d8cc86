// How the phases of a recipe divide a rank's rows into mini-batches and micro-batches.
#include <algorithm>

#include "spec/recipe/recipe.h"

namespace neap::spec {

UpdateShape update_shape(const Job& job, Body body) {
  // Each data-parallel rank has its share of the responses to a mini-batch's prompts.
  const auto of_responses = [&](ModelId model, std::int64_t epochs, std::int64_t prompts,
                                std::int64_t micro) {
    return UpdateShape{epochs, job.sequences_per_rank(model),
                       prompts * job.rollout.n / job.data_ranks(model), micro};
  };
  if (body == Body::kPolicyUpdate)
    return of_responses(ModelId::kActor, job.actor.ppo_epochs, job.actor_mini_batch(),
                        job.actor.ppo_micro_batch_size_per_gpu);
  if (body == Body::kValueUpdate)
    return of_responses(ModelId::kCritic, job.critic.ppo_epochs, job.critic_mini_batch(),
                        job.critic.ppo_micro_batch_size_per_gpu);
  const std::int64_t rows = job.rows_per_rank(job.main_model());
  return {1, rows, rows, job.data.micro_batch_size_per_gpu};
}

namespace {

std::int64_t rows_at_once(const Job& job, const Phase& phase) {
  switch (phase.body) {
    case Body::kGenerate:
      return phase.baseline ? std::min(job.rollout_batch(), job.prompts_per_rank())
                            : job.rollout_batch();
    case Body::kRolloutWeights:
      return 0;
    case Body::kLogProbs:
      return phase.id == PhaseId::kReferenceLogProbs
                 ? job.reference_micro_batch()
                 : job.rollout.log_prob_micro_batch_size_per_gpu;
    case Body::kTokenScores:
      return job.values_micro_batch();
    case Body::kSequenceScores:
      return job.reward_micro_batch();
    case Body::kPolicyUpdate:
    case Body::kValueUpdate:
    case Body::kCrossEntropyUpdate:
    case Body::kPairUpdate:
    case Body::kPreferenceUpdate:
      return update_shape(job, phase.body).micro_batch;
    case Body::kCrossEntropy:
    case Body::kPairScores:
      break;
  }
  return job.data.micro_batch_size_per_gpu * job.sequences_per_row();
}

// The budget of a key, or of the fallback if the key is unset.
TokenBudget or_else(TokenBudget budget, const TokenBudget& otherwise) {
  return budget.tokens != 0 ? budget : otherwise;
}

TokenBudget training_budget(const Job& job) {
  return {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu", job.actor.ppo_max_token_len_per_gpu};
}
TokenBudget critic_budget(const Job& job) {
  return {"critic.ppo_max_token_len_per_gpu", job.critic.ppo_max_token_len_per_gpu};
}
// The fallback of phases that score responses.
TokenBudget scoring_budget(const Job& job) {
  if (!job.has_rollout()) return {"data.max_token_len_per_gpu", job.data.max_token_len_per_gpu};
  return or_else({"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
                  job.rollout.log_prob_max_token_len_per_gpu},
                 training_budget(job));
}

std::int64_t tokens_at_once(const Job& job, const Phase& phase) {
  const bool packs = job.packs() && !phase.is_of_rollout();
  return packs ? token_budget(job, phase).tokens : 0;
}

}  // namespace

TokenBudget token_budget(const Job& job, const Phase& phase) {
  switch (phase.body) {
    case Body::kPolicyUpdate:
      return training_budget(job);
    case Body::kValueUpdate:
      return critic_budget(job);
    case Body::kTokenScores:
      return or_else(
          {"critic.forward_max_token_len_per_gpu", job.critic.forward_max_token_len_per_gpu},
          critic_budget(job));
    case Body::kSequenceScores:
      return or_else(
          {"reward_model.forward_max_token_len_per_gpu", job.reward_max_token_len_per_gpu},
          scoring_budget(job));
    case Body::kGenerate:
    case Body::kRolloutWeights:
    case Body::kLogProbs:
    case Body::kCrossEntropyUpdate:
    case Body::kPairUpdate:
    case Body::kPreferenceUpdate:
    case Body::kCrossEntropy:
    case Body::kPairScores:
      break;
  }
  if (phase.id != PhaseId::kReferenceLogProbs) return scoring_budget(job);
  return or_else(
      {"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", job.reference_max_token_len_per_gpu},
      scoring_budget(job));
}

Batching batching_of(const Job& job, const Phase& phase) {
  if (phase.body == Body::kRolloutWeights) return {};
  // Context-parallel ranks share their micro-batches, so their budgets add up.
  Batching out{rows_at_once(job, phase),
               tokens_at_once(job, phase) * job.context_ranks(phase.model),
               takes_pairs(phase.body) ? 2 : 1, 0, 1};
  if (phase.trains()) {
    out.most_rows = update_shape(job, phase.body).mini_batch;
  } else if (phase.body == Body::kGenerate) {
    out.most_rows = phase.baseline ? job.prompts_per_rank() : job.responses_per_rank();
  } else {
    out.most_rows =
        phase.baseline ? job.rows_per_rank(phase.model) : job.sequences_per_rank(phase.model);
  }
  out.together = phase.storage.together;
  return out;
}

}  // namespace neap::spec
