#include "plan/tunables.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/json.h"

namespace neap::plan {
namespace {

using Keys = std::vector<std::pair<std::string, std::int64_t*>>;

constexpr std::string_view kSmallerTraining =
    "smaller micro batches in training: same result, more passes";
constexpr std::string_view kSmallerInference =
    "smaller micro batches in inference: same result, more passes";
constexpr std::string_view kFewerDecoded =
    "fewer sequences decoded together: same result, slower generation";
constexpr std::string_view kRecomputed =
    "recompute blocks in backward: same result, a third more compute in training";
constexpr std::string_view kReferenceOnce =
    "the reference runs before the first step, not in each: same result";
constexpr std::string_view kAdapters =
    "train LoRA adapters instead of all weights: another training";
constexpr std::string_view kLooser = "the plan may do more: same result";
constexpr std::string_view kDivided = "updates divided or streamed by the plan: same result";
constexpr std::string_view kLeaves =
    "tags leave the device between the phases that need them: same result";
constexpr std::string_view kShorter = "shorter responses: another training";

// By a part of the assignment; the first that fits.
struct Effect {
  std::string_view part, text;
};
constexpr Effect kEffects[] = {
    {"ppo_micro_batch_size_per_gpu", kSmallerTraining},
    {"data.micro_batch_size_per_gpu", kSmallerTraining},
    {"ppo_max_token_len_per_gpu", kSmallerTraining},
    {"data.max_token_len_per_gpu", kSmallerTraining},
    {"micro_batch_size_per_gpu", kSmallerInference},
    {"max_token_len_per_gpu", kSmallerInference},
    {"rollout.batch_size", kFewerDecoded},
    {"activation_checkpointing=full", kRecomputed},
    {"activation_checkpointing=auto",
     "activations that the plan chooses are computed again: same result"},
    {"memory.allow=", kLooser},
    {"memory.update=auto", kDivided},
    {"memory.residency=auto", kLeaves},
    {"state_dtype=bfloat16", "optimizer moments in bfloat16: another training"},
    {"precompute_ref_log_probs", kReferenceOnce},
    {"lora_rank", kAdapters},
    {"max_response_length", kShorter}};

// Largest divisor of `value` that is at most value / 2^halvings; micro batches must divide.
std::int64_t shrink(std::int64_t value, int halvings) {
  std::int64_t d = std::max<std::int64_t>(1, value >> halvings);
  while (value % d != 0) --d;
  return d;
}

// All keys are halved together, a level for each time that changes one of them: budgets of tokens as
// far as the longest row of `least` tokens, with 0 sizes that divide as far as 1.
bool shrink_keys(const Keys& keys, std::int64_t least, std::vector<std::string>& overrides,
                 int level) {
  const auto at = [&](std::int64_t value, int halvings) {
    return least > 0 ? std::min(value, std::max(least, value >> halvings))
                     : shrink(value, halvings);
  };
  const auto is_changed = [&](int from, int to) {
    return std::any_of(keys.begin(), keys.end(), [&](const Keys::value_type& key) {
      return at(*key.second, to) != at(*key.second, from);
    });
  };
  constexpr int kAllHalvings = 62;
  int halvings = 0;
  int reached = 0;
  for (; reached < level && halvings < kAllHalvings; ++halvings)
    if (is_changed(halvings, halvings + 1)) ++reached;
  for (const auto& [key, field] : keys) {
    const std::int64_t smaller = at(*field, halvings);
    if (smaller == *field) continue;
    *field = smaller;
    overrides.push_back(format("{}={}", key, smaller));
  }
  return level > 0 && reached == level;
}

// Of keys that take the value of another where they are zero, those that are set.
Keys set_keys(const Keys& all) {
  Keys out;
  for (const auto& entry : all)
    if (*entry.second > 0) out.push_back(entry);
  return out;
}

Keys training_keys(spec::Job& j) {
  if (!j.has_rollout()) {
    if (j.packs()) return {{"data.max_token_len_per_gpu", &j.data.max_token_len_per_gpu}};
    return {{"data.micro_batch_size_per_gpu", &j.data.micro_batch_size_per_gpu}};
  }
  const std::string actor = "actor_rollout_ref.actor.";
  Keys keys;
  if (j.packs()) {
    keys.emplace_back(actor + "ppo_max_token_len_per_gpu", &j.actor.ppo_max_token_len_per_gpu);
  } else {
    keys.emplace_back(actor + "ppo_micro_batch_size_per_gpu",
                      &j.actor.ppo_micro_batch_size_per_gpu);
  }
  if (!j.has_critic()) return keys;
  if (j.packs()) {
    keys.emplace_back("critic.ppo_max_token_len_per_gpu", &j.critic.ppo_max_token_len_per_gpu);
  } else {
    keys.emplace_back("critic.ppo_micro_batch_size_per_gpu",
                      &j.critic.ppo_micro_batch_size_per_gpu);
  }
  return keys;
}

Keys inference_keys(spec::Job& j) {
  if (!j.has_rollout()) return {};
  if (j.packs()) {
    return set_keys(
        {{"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
          &j.rollout.log_prob_max_token_len_per_gpu},
         {"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
          &j.reference_max_token_len_per_gpu},
         {"reward_model.forward_max_token_len_per_gpu", &j.reward_max_token_len_per_gpu},
         {"critic.forward_max_token_len_per_gpu", &j.critic.forward_max_token_len_per_gpu}});
  }
  return set_keys(
      {{"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        &j.rollout.log_prob_micro_batch_size_per_gpu},
       {"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        &j.reference_micro_batch_size_per_gpu},
       {"reward_model.micro_batch_size_per_gpu", &j.reward_micro_batch_size_per_gpu},
       {"critic.forward_micro_batch_size_per_gpu", &j.critic.forward_micro_batch_size_per_gpu}});
}

std::int64_t least_tokens(const spec::Job& j) {
  return j.packs() ? j.max_sequence_length() * (j.has_pairs() ? 2 : 1) : 0;
}

bool keeps_activations(const spec::ModelConfig& model) {
  return model.checkpoint_mode() != spec::CheckpointMode::kFull;
}

Tunable reference_once() {
  return {kReferenceOnce, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            const bool changes = level == 1 && j.task == spec::Task::kDpo &&
                                 !j.precomputes_reference() && !j.reference_is_actor_base();
            if (!changes) return false;
            j.dpo.precompute_ref_log_probs = true;
            o.emplace_back("dpo.precompute_ref_log_probs=true");
            return true;
          }};
}

Tunable free_residency() {
  return {kLeaves, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            if (level > 1 || j.memory.residency == "auto") return false;
            j.memory.residency = "auto";
            o.emplace_back("memory.residency=auto");
            return true;
          }};
}

Tunable free_updates() {
  return {kDivided, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            if (level > 1 || j.memory.update.automatic) return false;
            j.memory.update = {};
            o.emplace_back("memory.update=auto");
            return true;
          }};
}

// The measures that leave every bit as it is, one more at each level.
Tunable exact_measures() {
  return {kLooser, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            std::vector<std::string> missing;
            for (const spec::Measure measure :
                 {spec::Measure::kMove, spec::Measure::kStream, spec::Measure::kStreamWeights,
                  spec::Measure::kRecompute})
              if (!j.memory.allows(measure)) missing.emplace_back(to_string(measure));
            if (static_cast<std::size_t>(level) > missing.size()) return false;
            j.memory.allow.insert(j.memory.allow.end(), missing.begin(), missing.begin() + level);
            o.push_back("memory.allow=" + Json(j.memory.allow).dump());
            return true;
          }};
}

Tunable full_recomputation(const spec::Job& job) {
  const bool actor = keeps_activations(job.actor_model);
  const bool critic = job.has_critic() && keeps_activations(job.critic.model);
  return {kRecomputed, 2, true, [=](spec::Job& j, std::vector<std::string>& o, int level) {
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

// Adapters are trained on weights. Only sft can start without any; in other tasks a folder that has
// none is one whose weights are still to be downloaded.
bool takes_adapters(const spec::Job& job, const std::string& path) {
  const Result<spec::ModelFiles> files = job.model_files(path);
  return files.ok() && (job.task != spec::Task::kSft || spec::has_weights(files->base));
}

Tunable adapters(const spec::Job& job) {
  const bool actor = job.actor_model.lora.rank == 0 && takes_adapters(job, job.actor_model.path);
  const bool critic =
      job.has_critic() && job.critic.model.lora.rank == 0 && takes_adapters(job, job.critic_path());
  return {kAdapters, 8, false, [=](spec::Job& j, std::vector<std::string>& o, int level) {
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
  return {kShorter, 6, false, [](spec::Job& j, std::vector<std::string>& o, int level) {
            const std::int64_t shorter = j.data.max_response_length >> level;
            if (shorter < 8) return false;
            j.data.max_response_length = shorter;
            o.push_back(format("data.max_response_length={}", shorter));
            return true;
          }};
}

}  // namespace

Tunable training_micro_batches() {
  return {kSmallerTraining, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            return shrink_keys(training_keys(j), least_tokens(j), o, level);
          }};
}

Tunable inference_micro_batches() {
  return {kSmallerInference, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            return shrink_keys(inference_keys(j), least_tokens(j), o, level);
          }};
}

Tunable rollout_batches() {
  return {kFewerDecoded, 1, true, [](spec::Job& j, std::vector<std::string>& o, int level) {
            if (!j.has_rollout()) return false;
            j.rollout.batch_size = j.rollout_batch();
            const Keys keys = {{"actor_rollout_ref.rollout.batch_size", &j.rollout.batch_size}};
            return shrink_keys(keys, 0, o, level);
          }};
}

std::vector<Tunable> tunables(const spec::Job& job) {
  std::vector<Tunable> list = {
      free_residency(),          free_updates(),    exact_measures(), training_micro_batches(),
      inference_micro_batches(), rollout_batches(), reference_once(), full_recomputation(job)};
  for (Tunable& tunable : other_trainings(job)) list.push_back(std::move(tunable));
  return list;
}

std::vector<Tunable> other_trainings(const spec::Job& job) {
  return {adapters(job), shorter_responses()};
}

std::string_view effect_of(std::string_view assignment) {
  for (const Effect& effect : kEffects)
    if (assignment.find(effect.part) != std::string_view::npos) return effect.text;
  return {};
}

}  // namespace neap::plan
