#include "plan/tunables.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace neap::plan {
namespace {

using Keys = std::vector<std::pair<std::string, std::int64_t*>>;

// Largest divisor of `value` that is at most value / 2^level; micro batches must divide.
std::int64_t shrink(std::int64_t value, int level) {
  std::int64_t d = std::max<std::int64_t>(1, value >> level);
  while (value % d != 0) --d;
  return d;
}

bool shrink_keys(const Keys& keys, std::vector<std::string>& overrides, int level) {
  bool changed = false;
  bool further = false;  // than the level before
  for (const auto& [key, field] : keys) {
    further = further || shrink(*field, level) != shrink(*field, level - 1);
    const std::int64_t smaller = shrink(*field, level);
    if (smaller == *field) continue;
    *field = smaller;
    overrides.push_back(format("{}={}", key, smaller));
    changed = true;
  }
  return changed && further;
}

Keys training_keys(spec::Job& j) {
  if (!j.has_rollout())
    return {{"data.micro_batch_size_per_gpu", &j.data.micro_batch_size_per_gpu}};
  Keys keys = {{"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
                &j.actor.ppo_micro_batch_size_per_gpu}};
  if (j.has_critic())
    keys.emplace_back("critic.ppo_micro_batch_size_per_gpu",
                      &j.critic.ppo_micro_batch_size_per_gpu);
  return keys;
}

Keys inference_keys(spec::Job& j) {
  if (!j.has_rollout()) return {};
  // Only keys that are set; a zero takes the value of another key.
  Keys keys = {{"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
                &j.rollout.log_prob_micro_batch_size_per_gpu}};
  if (j.reference_micro_batch_size_per_gpu > 0)
    keys.emplace_back("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
                      &j.reference_micro_batch_size_per_gpu);
  if (j.reward_micro_batch_size_per_gpu > 0)
    keys.emplace_back("reward_model.micro_batch_size_per_gpu", &j.reward_micro_batch_size_per_gpu);
  if (j.critic.forward_micro_batch_size_per_gpu > 0)
    keys.emplace_back("critic.forward_micro_batch_size_per_gpu",
                      &j.critic.forward_micro_batch_size_per_gpu);
  return keys;
}

bool keeps_activations(const spec::ModelConfig& model) {
  return model.checkpoint_mode() != spec::CheckpointMode::kFull;
}

Tunable full_recomputation(const spec::Job& job) {
  const bool actor = keeps_activations(job.actor_model);
  const bool critic = job.has_critic() && keeps_activations(job.critic.model);
  return {"recompute blocks in backward: same result, a third more compute in training", 2, true,
          [=](spec::Job& j, std::vector<std::string>& o, int level) {
            if (actor) {
              j.actor_model.activation_checkpointing = "full";
              o.emplace_back("actor_rollout_ref.model.activation_checkpointing=full");
            }
            if (critic) {
              j.critic.model.activation_checkpointing = "full";
              o.emplace_back("critic.model.activation_checkpointing=full");
            }
            return level == 1 && (actor || critic);
          }};
}

Tunable adapters(const spec::Job& job) {
  const bool actor = job.actor_model.lora.rank == 0;
  const bool critic = job.has_critic() && job.critic.model.lora.rank == 0;
  return {"train LoRA adapters instead of all weights: another training", 8, false,
          [=](spec::Job& j, std::vector<std::string>& o, int level) {
            if (actor) {
              j.actor_model.lora.rank = 16;
              o.emplace_back("actor_rollout_ref.model.lora_rank=16");
            }
            if (critic) {
              j.critic.model.lora.rank = 16;
              o.emplace_back("critic.model.lora_rank=16");
            }
            return level == 1 && (actor || critic);
          }};
}

Tunable shorter_responses() {
  return {"shorter responses: another training", 6, false,
          [](spec::Job& j, std::vector<std::string>& o, int level) {
            const std::int64_t shorter = j.data.max_response_length >> level;
            if (shorter < 8) return false;
            j.data.max_response_length = shorter;
            o.push_back(format("data.max_response_length={}", shorter));
            return true;
          }};
}

}  // namespace

Tunable training_micro_batches() {
  return {"smaller micro batches in training: same result, more passes", 1, true,
          [](spec::Job& j, std::vector<std::string>& o, int level) {
            return shrink_keys(training_keys(j), o, level);
          }};
}

Tunable inference_micro_batches() {
  return {"smaller micro batches in inference: same result, more passes", 1, true,
          [](spec::Job& j, std::vector<std::string>& o, int level) {
            return shrink_keys(inference_keys(j), o, level);
          }};
}

Tunable rollout_batches() {
  return {"fewer sequences decoded together: same result, slower generation", 1, true,
          [](spec::Job& j, std::vector<std::string>& o, int level) {
            const std::int64_t now = j.rollout_batch();
            if (!j.has_rollout() || now >> level < 1) return false;
            j.rollout.batch_size = shrink(now, level);
            o.push_back(format("actor_rollout_ref.rollout.batch_size={}", j.rollout.batch_size));
            return j.rollout.batch_size != now;
          }};
}

std::vector<Tunable> tunables(const spec::Job& job) {
  std::vector<Tunable> list = {training_micro_batches(), inference_micro_batches(),
                               rollout_batches(), full_recomputation(job)};
  for (Tunable& tunable : other_trainings(job)) list.push_back(std::move(tunable));
  return list;
}

std::vector<Tunable> other_trainings(const spec::Job& job) {
  return {adapters(job), shorter_responses()};
}

}  // namespace neap::plan
