#include "spec/keys/size_checks.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "spec/recipe/recipe.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

Status check_ranks_of_plan(const Job& job) {
  if (job.launched_ranks > 0 || job.ranks() <= kMostRanks) return {};
  return wrong(format("trainer.nnodes {} x trainer.n_gpus_per_node {} are {} ranks; the most is {}",
                      job.trainer.nnodes, job.trainer.n_gpus_per_node, job.ranks(), kMostRanks));
}

// The rows of a step as text: "data.train_batch_size 64 x actor_rollout_ref.rollout.n 8".
std::string step_text(const Job& job) {
  std::string text = format("data.train_batch_size {}", job.data.train_batch_size);
  if (job.has_rollout()) return text + format(" x actor_rollout_ref.rollout.n {}", job.rollout.n);
  return job.has_pairs() ? text + " pairs" : text;
}

// The smallest number of ranks that share a step's rows.
std::int64_t fewest_sharing(const Job& job) {
  std::int64_t fewest = job.has_rollout() ? job.generating_ranks() : job.data_ranks();
  for (const ModelId model : job.models()) fewest = std::min(fewest, job.data_ranks(model));
  return fewest;
}

Status check_sequences(const Job& job) {
  const std::int64_t ranks = fewest_sharing(job);
  const std::int64_t each = job.sequences_per_step() / ranks;
  if (each <= kMostSequences) return {};
  return wrong(
      format("{} are {} sequences of a step for each of {} ranks that share them; the most is {}",
             step_text(job), each, ranks, kMostSequences));
}

std::string lengths_text(const Job& job) {
  return format("(data.max_prompt_length {} + data.max_response_length {})",
                job.data.max_prompt_length, job.data.max_response_length);
}

struct PaddedSize {
  std::string_view key;
  std::int64_t rows = 0;
};

// The micro-batch sizes that the job reads.
std::vector<PaddedSize> padded_sizes(const Job& job) {
  const PaddedSize of_reference{"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
                                job.reference_micro_batch_size_per_gpu};
  std::vector<PaddedSize> out;
  if (!job.has_rollout()) {
    out.push_back({"data.micro_batch_size_per_gpu",
                   job.data.micro_batch_size_per_gpu * job.sequences_per_row()});
    if (job.uses_reference()) out.push_back(of_reference);
    return out;
  }
  if (!job.trains_policy()) return out;
  out = {{"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
          job.actor.ppo_micro_batch_size_per_gpu},
         {"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
          job.rollout.log_prob_micro_batch_size_per_gpu}};
  if (job.uses_reference()) out.push_back(of_reference);
  if (job.has_critic()) {
    out.push_back({"critic.ppo_micro_batch_size_per_gpu", job.critic.ppo_micro_batch_size_per_gpu});
    out.push_back(
        {"critic.forward_micro_batch_size_per_gpu", job.critic.forward_micro_batch_size_per_gpu});
  }
  if (job.has_reward_model())
    out.push_back({"reward_model.micro_batch_size_per_gpu", job.reward_micro_batch_size_per_gpu});
  return out;
}

// Packed micro-batches are bounded by their keys.
Status check_micro_batches(const Job& job) {
  if (job.packs()) return {};
  for (const PaddedSize& size : padded_sizes(job)) {
    const std::int64_t tokens = size.rows * job.max_sequence_length();
    if (tokens <= kMostMicroTokens) continue;
    return wrong(format("{}: {} sequences x {} are {} tokens of a micro-batch; the most is {}",
                        size.key, size.rows, lengths_text(job), tokens, kMostMicroTokens));
  }
  return {};
}

Status check_generation(const Job& job) {
  if (!job.generates()) return {};
  std::int64_t tokens = job.rollout_batch() * job.max_sequence_length();
  if (job.rollout.max_total_tokens > 0) tokens = std::min(tokens, job.rollout.max_total_tokens);
  if (tokens > kMostCachedTokens)
    return wrong(
        format("{} sequences that are decoded together (actor_rollout_ref.rollout.batch_size {} of "
               "{}) x {} are {} tokens of the KV cache; the most is {}",
               job.rollout_batch(), job.rollout.batch_size, step_text(job), lengths_text(job),
               tokens, kMostCachedTokens));
  constexpr std::int64_t kPage = kCachePageTokens;
  const std::int64_t held = job.rollout.max_total_tokens / kPage * kPage;
  if (job.rollout.max_total_tokens > 0 && held < job.max_sequence_length())
    return wrong(format(
        "actor_rollout_ref.rollout.max_total_tokens {} holds {} tokens in whole pages of {}, less "
        "than one sequence of {} tokens {}; set at least {}",
        job.rollout.max_total_tokens, held, kPage, job.max_sequence_length(), lengths_text(job),
        (job.max_sequence_length() + kPage - 1) / kPage * kPage));
  const std::int64_t chunks = job.data.max_prompt_length / job.rollout.max_num_batched_tokens;
  if (!job.rollout.enable_chunked_prefill || chunks <= kMostChunks) return {};
  return wrong(format(
      "actor_rollout_ref.rollout.max_num_batched_tokens {} prefills data.max_prompt_length {} "
      "in {} parts; the most is {}",
      job.rollout.max_num_batched_tokens, job.data.max_prompt_length, chunks, kMostChunks));
}

// The schedule of a pipeline lists every micro-batch of a mini-batch for each chunk.
Status check_stages(const Job& job) {
  if (!job.has_stages()) return {};
  const std::int64_t longest = job.max_sequence_length();
  for (const Phase& phase : describe(job).phases) {
    const std::int64_t stages = job.mesh(phase.model).size(Axis::kPipe);
    if (stages == 1 || phase.is_of_rollout()) continue;
    const Batching batching = batching_of(job, phase);
    const std::int64_t together = batching.tokens == 0
                                      ? batching.rows
                                      : batching.tokens / (longest * batching.sequences_of_row);
    const std::int64_t micro_batches = batching.most_rows / std::max<std::int64_t>(1, together);
    const std::int64_t chunks = job.parallel.virtual_pipeline_model_parallel_size;
    if (micro_batches <= kMostStageSteps / (stages * chunks)) continue;
    return wrong(
        format("parallel.pipeline_model_parallel_size: {} micro-batches x {} stages x {} chunks "
               "(parallel.virtual_pipeline_model_parallel_size) are over {}; take a smaller "
               "mini-batch (data.train_batch_size) or larger micro-batches",
               micro_batches, stages, chunks, kMostStageSteps));
  }
  return {};
}

}  // namespace

Status check_sizes(const Job& job) {
  NEAP_TRY(check_ranks_of_plan(job));
  NEAP_TRY(check_sequences(job));
  NEAP_TRY(check_micro_batches(job));
  NEAP_TRY(check_generation(job));
  return check_stages(job);
}

}  // namespace neap::spec
