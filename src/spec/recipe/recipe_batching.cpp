// How the phases of a recipe divide a rank's rows: mini-batches, micro-batches and token budgets.
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

std::int64_t tokens_at_once(const Job& job, const Phase& phase) {
  if (!job.packs() || phase.body == Body::kGenerate) return 0;
  const auto either = [](std::int64_t tokens, std::int64_t otherwise) {
    return tokens != 0 ? tokens : otherwise;
  };
  const bool reference = phase.id == PhaseId::kReferenceLogProbs;
  if (!job.has_rollout()) {
    const std::int64_t tokens = job.data.max_token_len_per_gpu;
    return reference ? either(job.reference_max_token_len_per_gpu, tokens) : tokens;
  }
  const std::int64_t training = job.actor.ppo_max_token_len_per_gpu;
  const std::int64_t scoring = either(job.rollout.log_prob_max_token_len_per_gpu, training);
  switch (phase.body) {
    case Body::kPolicyUpdate:
      return training;
    case Body::kValueUpdate:
      return job.critic.ppo_max_token_len_per_gpu;
    case Body::kTokenScores:
      return either(job.critic.forward_max_token_len_per_gpu, job.critic.ppo_max_token_len_per_gpu);
    case Body::kSequenceScores:
      return either(job.reward_max_token_len_per_gpu, scoring);
    default:
      return reference ? either(job.reference_max_token_len_per_gpu, scoring) : scoring;
  }
}

bool takes_pairs(Body body) {
  return body == Body::kPairUpdate || body == Body::kPreferenceUpdate;
}

}  // namespace

Batching batching_of(const Job& job, const Phase& phase) {
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
  out.together = phase.together;
  return out;
}

}  // namespace neap::spec
