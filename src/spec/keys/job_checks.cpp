// Checks of a job that involve several keys.
#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/text.h"
#include "spec/job/job.h"
#include "spec/job/optimizer.h"
#include "spec/keys/job_keys.h"
#include "spec/keys/micro_batches.h"
#include "spec/keys/parallel_checks.h"
#include "spec/keys/size_checks.h"
#include "spec/keys/token_budgets.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

constexpr std::array<std::string_view, 5> kLoggers = {"console", "jsonl", "tensorboard", "wandb",
                                                      "mlflow"};

Status divides(std::string_view small_key, std::int64_t small, std::string_view large_key,
               std::int64_t large) {
  if (small >= 1 && large % small == 0) return {};
  return wrong(format("{} {} does not divide {} {}", small_key, small, large_key, large));
}

bool valid_resume_mode(const std::string& mode) {
  // A single word that is neither keyword is treated as a typo, not as a folder.
  return mode == "auto" || mode == "disable" || mode.find('/') != std::string::npos;
}

Status validate_lora(const std::string& at, const ModelConfig& m) {
  if (m.lora.rank > 0 && m.lora.modules.empty() && m.lora.targets.empty())
    return wrong(at + ".lora_rank is set but " + at + ".target_modules is empty");
  return {};
}

Status validate_checkpointing(const std::string& at, const ModelConfig& m) {
  const CheckpointMode mode = m.activation_checkpointing;
  if (!m.enable_gradient_checkpointing || mode == CheckpointMode::kFull ||
      mode == ModelConfig().activation_checkpointing)
    return {};
  return wrong(
      format("{}.enable_gradient_checkpointing = true means {}.activation_checkpointing = "
             "\"full\", which is \"{}\"; leave one of them out",
             at, at, to_string(mode)));
}

Status validate_losses(const Job& job) {
  if (job.dpo.loss_type == PreferenceLoss::kRobust && job.dpo.label_smoothing >= 0.5) {
    return wrong(
        format("dpo.label_smoothing {} is too large for loss \"robust\", which divides by 1 - 2 x "
               "label_smoothing; take less than 0.5",
               job.dpo.label_smoothing));
  }
  if (job.actor.loss_mode == PolicyLoss::kDro && job.actor.dro_beta <= 0) {
    return wrong(
        "actor_rollout_ref.actor.policy_loss.dro_beta is 0; loss \"dro\" needs it above 0");
  }
  if (job.actor.clip_ratio_c != 0 && job.actor.clip_ratio_c < 1) {
    return wrong(
        format("actor_rollout_ref.actor.clip_ratio_c is {}; it can be 0 (no dual clip) or "
               "at least 1",
               job.actor.clip_ratio_c));
  }
  return {};
}

// For jobs with a rollout. Kept experience has its advantages.
Status validate_advantages(const Job& job) {
  if (job.reads_experience()) return {};
  const bool gae = job.algorithm.adv_estimator == AdvantageEstimator::kGae;
  if (gae != job.has_critic()) {
    return wrong(format("algorithm.adv_estimator \"{}\" does not go with task \"{}\"; take \"{}\"",
                        to_string(job.algorithm.adv_estimator), to_string(job.task),
                        job.has_critic() ? "gae" : "grpo"));
  }
  if (compares_responses(job.algorithm.adv_estimator) && job.rollout.n < 2) {
    return wrong(
        format("actor_rollout_ref.rollout.n is 1; {} compares at least 2 responses to a "
               "prompt",
               to_string(job.algorithm.adv_estimator)));
  }
  if (job.algorithm.filter_groups.enable && job.rollout.n < 2) {
    return wrong(
        "algorithm.filter_groups.enable needs actor_rollout_ref.rollout.n of at least 2: it drops "
        "prompts whose responses all have the same score");
  }
  if (job.algorithm.filter_groups.metric == "acc" && job.reward.functions.empty()) {
    return wrong(
        "algorithm.filter_groups.metric is \"acc\", which [[reward.functions]] tell; there are "
        "none");
  }
  if (job.algorithm.rollout_correction.weighs())
    NEAP_TRY(importance_weights(job.algorithm.rollout_correction).status());
  NEAP_TRY(rejection_rules(job.algorithm.rollout_correction).status());
  if (job.algorithm.rollout_correction.bypass_mode && job.actor.loss_mode != PolicyLoss::kVanilla)
    return wrong(
        format("algorithm.rollout_correction.bypass_mode has the losses of its loss_type, not "
               "policy_loss.loss_mode \"{}\"",
               to_string(job.actor.loss_mode)));
  return {};
}

constexpr std::string_view kActorOptimizer = "actor_rollout_ref.actor.optim";
constexpr std::string_view kCriticOptimizer = "critic.optim";

Status validate_optimizer(std::string_view at, const OptimizerConfig& o, const DeviceConfig& d) {
  const Dtype weights = d.dtype == "auto" ? Dtype::kBfloat16 : *parse_dtype(d.dtype);
  const Result<OptimizerSpec> spec = OptimizerSpec::of(o, weights);
  if (!spec.ok()) return Status(spec.status()).with_context(format("checking {}", at));
  if (o.nesterov && o.momentum == 0)
    return wrong(format("{}.nesterov is true, but {}.momentum is 0", at, at));
  if (spec->kind == OptimizerKind::kSgd && !spec->momentum && o.state_dtype != Dtype::kFloat32)
    return wrong(format("{}.state_dtype is \"{}\", but sgd without momentum keeps no state", at,
                        to_string(o.state_dtype)));
  return {};
}

Status validate_validation(const Job& job) {
  const ValidationSampling& v = job.rollout.val_kwargs;
  const std::string at = "actor_rollout_ref.rollout.val_kwargs";
  if (v.n > 1 && (!v.do_sample || v.temperature == 0))
    return wrong(
        format("{}.n is {}, but greedy responses to a prompt are all the same; set {}.do_sample = "
               "true and a temperature above 0",
               at, v.n, at));
  for (const auto& [key, metric] : {std::pair{"best_metric", &job.trainer.best_metric},
                                    std::pair{"stop_metric", &job.trainer.stop_metric}}) {
    if (!metric->empty() && job.data.val_files.empty())
      return wrong(format("trainer.{} is set, but data.val_files is empty", key));
  }
  if (!job.trainer.stop_metric.empty() && job.trainer.test_freq < 1)
    return wrong(
        format("trainer.stop_metric is set, but trainer.test_freq is {}: nothing is validated "
               "before the last step",
               job.trainer.test_freq));
  return {};
}

// The rollout's tags come once per step.
Status validate_colocation(const Job& job) {
  if (!job.copies_rollout_weights()) return {};
  const std::string key =
      format("actor_rollout_ref.rollout.colocation \"{}\"", to_string(job.rollout.colocation));
  if (job.algorithm.filter_groups.enable || job.has_greedy_baseline())
    return wrong(format("{} is for jobs that generate once per step; leave out {}", key,
                        job.has_greedy_baseline() ? "algorithm.adv_estimator \"remax\""
                                                  : "algorithm.filter_groups.enable"));
  if (job.memory.offload == Residency::kAll && job.rollout.colocation != Colocation::kResident)
    return wrong(
        format("{} takes the rollout's tags off the device between rollouts, but "
               "memory.offload is \"none\"; leave one of them out",
               key));
  return {};
}

Status validate_rollout(const Job& job) {
  NEAP_TRY(validate_colocation(job));
  const RolloutConfig& r = job.rollout;
  if (!job.trains_policy() || !job.generates() || r.enable_chunked_prefill ||
      r.max_num_batched_tokens >= job.data.max_prompt_length)
    return {};
  return wrong(format(
      "actor_rollout_ref.rollout.max_num_batched_tokens is {}, but prompts may have {} tokens "
      "(data.max_prompt_length); raise it or set enable_chunked_prefill = true",
      r.max_num_batched_tokens, job.data.max_prompt_length));
}

Status validate_experience(const Job& job) {
  if (!job.reads_experience()) return {};
  if (job.trainer.experience_dir.empty())
    return wrong(
        "trainer.experience is \"read\", but trainer.experience_dir is empty; set it to the folder "
        "of the run with trainer.experience = \"keep\"");
  for (const auto& [key, metric] : {std::pair{"best_metric", &job.trainer.best_metric},
                                    std::pair{"stop_metric", &job.trainer.stop_metric}}) {
    if (!metric->empty())
      return wrong(format(
          "trainer.{} is set, but a run with trainer.experience = \"read\" does not validate; "
          "leave it out",
          key));
  }
  return {};
}

Status validate_rewards(const Job& job) {
  if (job.reads_experience()) return {};
  for (std::size_t i = 0; i < job.reward.functions.size(); ++i) {
    const std::vector<std::string>& command = job.reward.functions[i].command;
    std::error_code ignored;
    if (command.size() != 1 || command[0].find(' ') == std::string::npos ||
        std::filesystem::exists(job.resolve(command[0]), ignored))
      continue;
    std::string words = command[0];
    for (auto at = words.find(' '); at != std::string::npos; at = words.find(' ', at + 4))
      words.replace(at, 1, "\", \"");
    return wrong(
        format("reward.functions.{}.command is one word, \"{}\", and no such program is "
               "there; give the program and its arguments as a list: [\"{}\"]",
               i, command[0], words));
  }
  // Without a reward function, `neap eval` derives one from the answers in the data.
  if (!job.trains_policy() || job.has_reward_model() || !job.reward.functions.empty()) return {};
  return wrong(
      format("{} needs rewards: set reward_model.model.path, or add [[reward.functions]] "
             "(docs/rewards.md)",
             to_string(job.task)));
}

}  // namespace

Status Job::validate() const {
  if (actor_model.path.empty())
    return wrong(
        "actor_rollout_ref.model.path is missing: the folder with the model's config.json");
  // A plan needs no data.
  if (launched_ranks > 0 && task != Task::kEval && !reads_experience() && data.train_files.empty())
    return wrong(
        "data.train_files is empty: name the files to train on, as data.train_files = "
        "[\"train.jsonl\"]");
  NEAP_TRY(validate_lora("actor_rollout_ref.model", actor_model));
  NEAP_TRY(validate_lora("critic.model", critic.model));
  NEAP_TRY(validate_checkpointing("actor_rollout_ref.model", actor_model));
  NEAP_TRY(validate_checkpointing("critic.model", critic.model));
  NEAP_TRY(validate_optimizer(kActorOptimizer, actor.optim, device));
  NEAP_TRY(validate_optimizer(kCriticOptimizer, critic.optim, device));
  NEAP_TRY(check_sizes(*this));
  NEAP_TRY(check_ranks(*this));
  // Every shard is an open file while it is written, so tiny shards would open too many.
  if (trainer.max_shard_size < Bytes(1'000'000))
    return wrong(format("trainer.max_shard_size is {}; the least is 1 MB", trainer.max_shard_size));
  if (!memory.optimizer_offload.automatic &&
      memory.optimizer_offload.mode == UpdateMode::kStreamed && !memory.allows(Measure::kStream))
    return wrong(
        "memory.optimizer_offload is \"cpu\", but memory.allow does not hold "
        "\"offload_optimizer\"");
  if (!memory.optimizer_offload.automatic && memory.optimizer_offload.mode == UpdateMode::kDisk &&
      !memory.allows(Measure::kDisk))
    return wrong("memory.optimizer_offload is \"nvme\", but memory.allow does not hold \"nvme\"");
  if (!valid_resume_mode(trainer.resume_mode)) {
    return wrong(
        format("trainer.resume_mode is \"{}\"; it can be \"auto\", \"disable\" or the path "
               "of a checkpoint folder (with a /)",
               trainer.resume_mode));
  }
  for (const std::string& sink : trainer.logger) {
    if (std::find(kLoggers.begin(), kLoggers.end(), sink) == kLoggers.end())
      return wrong(
          format("trainer.logger has \"{}\"; it can hold \"console\", \"jsonl\", "
                 "\"tensorboard\", \"wandb\", \"mlflow\"",
                 sink));
  }
  NEAP_TRY(validate_data(data));
  NEAP_TRY(validate_rewards(*this));
  NEAP_TRY(validate_experience(*this));
  NEAP_TRY(validate_validation(*this));
  NEAP_TRY(validate_rollout(*this));
  NEAP_TRY(validate_losses(*this));
  NEAP_TRY(check_token_budgets(*this));
  if (trains_policy()) {
    NEAP_TRY(validate_advantages(*this));
    NEAP_TRY(divides("actor_rollout_ref.actor.ppo_mini_batch_size", actor_mini_batch(),
                     "data.train_batch_size", data.train_batch_size));
    if (has_critic())
      NEAP_TRY(divides("critic.ppo_mini_batch_size", critic_mini_batch(), "data.train_batch_size",
                       data.train_batch_size));
  }
  for (const BatchDivision& division : batch_divisions(*this)) NEAP_TRY(check_division(division));
  return {};
}

}  // namespace neap::spec
