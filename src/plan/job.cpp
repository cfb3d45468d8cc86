#include "plan/job.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::plan {
namespace {

// Sections that occur more than once in the file (actor and critic, actor and reward model) are
// bound by the functions below.

void bind_model(ConfigTable& t, const std::string& at, ModelConfig& m, const std::string& path_help,
                bool trainable) {
  t.bind(at + ".path", &m.path, path_help);
  t.bind(at + ".tokenizer_path", &m.tokenizer_path,
         "Folder with `tokenizer.json`; empty: the model's folder.");
  if (!trainable) return;
  t.bind(at + ".enable_gradient_checkpointing", &m.enable_gradient_checkpointing,
         "Keep only each block's input in the forward pass and compute the block again in the "
         "backward pass: less transient memory, about a third more compute.");
  t.bind(at + ".lora_rank", &m.lora.rank,
         "Rank of LoRA adapters; 0 trains every weight. Adapters shrink gradients and optimizer "
         "states to their own size.")
      .at_least(0)
      .at_most(4096);
  t.bind(at + ".lora_alpha", &m.lora.alpha, "LoRA's scale: updates count alpha / rank.")
      .at_least(0);
  t.bind(at + ".target_modules", &m.lora.target_modules,
         "Linear layers that get an adapter, by their last name (`q_proj`), or `all-linear`.");
}

void bind_optimizer(ConfigTable& t, const std::string& at, OptimizerConfig& o) {
  t.bind(at + ".optimizer", &o.kind, "Optimizer.").one_of({"adamw"});
  t.bind(at + ".lr", &o.lr, "Learning rate after warm-up.").at_least(0);
  t.bind(at + ".weight_decay", &o.weight_decay, "Decoupled weight decay.").at_least(0);
  t.bind(at + ".beta1", &o.beta1, "Decay of the first moment.").at_least(0).at_most(1);
  t.bind(at + ".beta2", &o.beta2, "Decay of the second moment.").at_least(0).at_most(1);
  t.bind(at + ".eps", &o.eps, "Added to the root of the second moment.").at_least(0);
  t.bind(at + ".lr_warmup_steps", &o.lr_warmup_steps, "Linear warm-up from zero.")
      .in("optimizer steps")
      .at_least(0);
  t.bind(at + ".lr_scheduler_type", &o.lr_schedule, "Learning rate after the warm-up.")
      .one_of({"constant", "linear", "cosine"});
}

// A "+" keeps the estimator's value and takes the gradient of k2.
std::vector<std::string> kl_estimators() {
  return {"kl",  "k1",  "abs",  "mse",  "k2",  "low_var_kl",  "k3",
          "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"};
}

void bind_loss_aggregation(ConfigTable& t, const std::string& path, std::string* field) {
  t.bind(path, field, "How a loss per token becomes one number.")
      .one_of(
          {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"});
}

void bind_device(ConfigTable& t, Job& job) {
  t.bind("device.kind", &job.device.kind,
         "`auto` takes the GPU if there is one, else the host device.")
      .one_of({"auto", "cuda", "host"});
  t.bind("device.memory", &job.device.memory,
         "Ceiling for everything that the job keeps on the device; `0 B`: all that the device "
         "has.");
  t.bind("device.ordinal", &job.device.ordinal, "Which GPU.").at_least(0);
  t.bind("device.dtype", &job.device.dtype,
         "Type of weights in forward and backward; `auto`: bfloat16 on a GPU, float32 on the host. "
         "With bfloat16 the optimizer keeps float32 masters.")
      .one_of({"auto", "float32", "bfloat16"});
  t.bind("memory.residency", &job.memory.residency,
         "`auto`: the plan decides what leaves the device between the phases that need it; `all`: "
         "everything stays.")
      .one_of({"auto", "all"});
  t.bind("memory.host_budget", &job.memory.host_budget,
         "Most host memory for copies of what left the device; `0 B`: no limit.");
  t.bind("memory.alloc_conf", &job.memory.alloc_conf,
         "Settings of the transient pools' allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.");
}

void bind_data(ConfigTable& t, DataConfig& d) {
  t.bind("data.train_files", &d.train_files, "JSONL files to train on.");
  t.bind("data.val_files", &d.val_files, "JSONL files held out for validation.");
  t.bind("data.prompt_key", &d.prompt_key, "Field of a row that holds the prompt.");
  t.bind("data.response_key", &d.response_key, "Field that holds the response (sft).");
  t.bind("data.chosen_key", &d.chosen_key, "Field that holds the preferred text (reward).");
  t.bind("data.rejected_key", &d.rejected_key, "Field that holds the other text (reward).");
  t.bind("data.train_batch_size", &d.train_batch_size,
         "Rows of one step: prompts in ppo and grpo, texts in sft, pairs in reward.")
      .in("rows")
      .at_least(1);
  t.bind("data.micro_batch_size_per_gpu", &d.micro_batch_size_per_gpu,
         "Rows that go through the model at once in sft and reward; gradients of the micro batches "
         "of a step add up.")
      .in("rows")
      .at_least(1);
  t.bind("data.max_prompt_length", &d.max_prompt_length, "Longest prompt.")
      .in("tokens")
      .at_least(1);
  t.bind("data.max_response_length", &d.max_response_length, "Longest response.")
      .in("tokens")
      .at_least(1);
  t.bind("data.shuffle", &d.shuffle, "New order of the rows in every epoch, from the seed.");
}

void bind_actor(ConfigTable& t, ActorConfig& a) {
  const std::string at = "actor_rollout_ref.actor";
  t.bind(at + ".ppo_mini_batch_size", &a.ppo_mini_batch_size,
         "Prompts of one optimizer step (times `rollout.n` sequences); divides "
         "`data.train_batch_size`.")
      .in("prompts")
      .at_least(1);
  t.bind(at + ".ppo_micro_batch_size_per_gpu", &a.ppo_micro_batch_size_per_gpu,
         "Sequences that go through forward and backward at once.")
      .in("sequences")
      .at_least(1);
  t.bind(at + ".ppo_epochs", &a.ppo_epochs, "Passes over a step's sequences.").at_least(1);
  t.bind(at + ".clip_ratio", &a.clip_ratio,
         "PPO's clip; sets `clip_ratio_low` and `clip_ratio_high` where they are not set.")
      .at_least(0);
  t.bind(at + ".clip_ratio_low", &a.clip_ratio_low, "Ratio is clipped at 1 - this.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".clip_ratio_high", &a.clip_ratio_high, "Ratio is clipped at 1 + this.").at_least(0);
  t.bind(at + ".clip_ratio_c", &a.clip_ratio_c,
         "Dual clip: least of the loss at negative advantages, in advantages.")
      .at_least(1);
  t.bind(at + ".entropy_coeff", &a.entropy_coeff, "Weight of the entropy bonus.").at_least(0);
  t.bind(at + ".use_kl_loss", &a.use_kl_loss, "Adds the KL to the reference to the loss.");
  t.bind(at + ".kl_loss_coef", &a.kl_loss_coef, "Weight of that KL.").at_least(0);
  t.bind(at + ".kl_loss_type", &a.kl_loss_type, "Estimator of that KL.").one_of(kl_estimators());
  bind_loss_aggregation(t, at + ".loss_agg_mode", &a.loss_agg_mode);
  t.bind(at + ".grad_clip", &a.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_optimizer(t, at + ".optim", a.optim);
}

void bind_rollout(ConfigTable& t, Job& job) {
  RolloutConfig& r = job.rollout;
  const std::string at = "actor_rollout_ref.rollout";
  t.bind(at + ".n", &r.n, "Responses for each prompt; grpo compares them.").at_least(1);
  t.bind(at + ".temperature", &r.temperature, "Logits are divided by it before sampling.")
      .at_least(0);
  t.bind(at + ".top_p", &r.top_p, "Samples from the most likely tokens of this mass.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".top_k", &r.top_k, "Samples from this many most likely tokens; -1: all.")
      .at_least(-1);
  t.bind(at + ".batch_size", &r.batch_size,
         "Sequences decoded together, which is what the KV cache has to hold; 0: the whole batch.")
      .in("sequences")
      .at_least(0);
  t.bind(at + ".log_prob_micro_batch_size_per_gpu", &r.log_prob_micro_batch_size_per_gpu,
         "Sequences whose old log-probabilities are computed at once.")
      .in("sequences")
      .at_least(1);
  bind_model(t, "actor_rollout_ref.ref.model", job.reference_model,
             "Folder of the reference model; empty: the actor's start.", false);
  t.bind("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
         &job.reference_micro_batch_size_per_gpu,
         "Sequences whose reference log-probabilities are computed at once; 0: as "
         "`rollout.log_prob_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0);
}

void bind_critic(ConfigTable& t, Job& job) {
  CriticConfig& c = job.critic;
  bind_model(t, "critic.model", c.model,
             "Folder of the model that the critic starts from; empty: the reward model's.", true);
  t.bind("critic.ppo_mini_batch_size", &c.ppo_mini_batch_size,
         "Prompts of one optimizer step (times `rollout.n` sequences).")
      .in("prompts")
      .at_least(1);
  t.bind("critic.ppo_micro_batch_size_per_gpu", &c.ppo_micro_batch_size_per_gpu,
         "Sequences that go through forward and backward at once.")
      .in("sequences")
      .at_least(1);
  t.bind("critic.forward_micro_batch_size_per_gpu", &c.forward_micro_batch_size_per_gpu,
         "Sequences whose values are computed at once; 0: as `ppo_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0);
  t.bind("critic.ppo_epochs", &c.ppo_epochs, "Passes over a step's sequences.").at_least(1);
  t.bind("critic.cliprange_value", &c.cliprange_value,
         "New values are clipped to this distance from the old ones.")
      .at_least(0);
  bind_loss_aggregation(t, "critic.loss_agg_mode", &c.loss_agg_mode);
  t.bind("critic.grad_clip", &c.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_optimizer(t, "critic.optim", c.optim);
  bind_model(t, "reward_model.model", job.reward_model, "Folder of the reward model.", false);
  t.bind("reward_model.micro_batch_size_per_gpu", &job.reward_micro_batch_size_per_gpu,
         "Sequences that are scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0);
}

void bind_algorithm(ConfigTable& t, AlgorithmConfig& a) {
  t.bind("algorithm.adv_estimator", &a.adv_estimator,
         "How rewards become advantages: `gae` in ppo, which has the critic that it needs; the "
         "others in grpo, which has none.")
      .one_of({"gae", "grpo", "rloo", "reinforce_plus_plus"});
  t.bind("algorithm.gamma", &a.gamma, "Discount of later rewards.").at_least(0).at_most(1);
  t.bind("algorithm.lam", &a.lam, "Lambda of GAE.").at_least(0).at_most(1);
  t.bind("algorithm.use_kl_in_reward", &a.use_kl_in_reward,
         "Takes the KL to the reference off each token's reward.");
  t.bind("algorithm.kl_penalty", &a.kl_penalty, "Estimator of that KL.").one_of(kl_estimators());
  t.bind("algorithm.kl_ctrl.type", &a.kl_ctrl_type,
         "`adaptive` steers the coefficient towards `target_kl`.")
      .one_of({"fixed", "adaptive"});
  t.bind("algorithm.kl_ctrl.kl_coef", &a.kl_coef, "Coefficient, or its start.").at_least(0);
  t.bind("algorithm.kl_ctrl.horizon", &a.horizon, "Slowness of the adaptive controller.")
      .in("sequences")
      .at_least(1);
  t.bind("algorithm.kl_ctrl.target_kl", &a.target_kl, "KL that the adaptive controller aims at.")
      .at_least(0);
  t.bind("algorithm.norm_adv_by_std_in_grpo", &a.norm_adv_by_std_in_grpo,
         "Divides grpo's advantages by the group's standard deviation.");
}

void bind_trainer(ConfigTable& t, TrainerConfig& r) {
  t.bind("trainer.total_epochs", &r.total_epochs, "Passes over the training data.").at_least(1);
  t.bind("trainer.total_training_steps", &r.total_training_steps,
         "Ends after this many steps; 0: by epochs.")
      .in("steps")
      .at_least(0);
  t.bind("trainer.save_freq", &r.save_freq, "Checkpoint every so many steps; -1: only at the end.")
      .in("steps")
      .at_least(-1);
  t.bind("trainer.test_freq", &r.test_freq,
         "Validation every so many steps; -1: only before and after.")
      .in("steps")
      .at_least(-1);
  t.bind("trainer.max_ckpt_to_keep", &r.max_ckpt_to_keep, "Older checkpoints are removed; 0: none.")
      .in("checkpoints")
      .at_least(0);
  t.bind("trainer.default_local_dir", &r.default_local_dir,
         "Folder for checkpoints, metrics and the trace.");
  t.bind("trainer.resume_mode", &r.resume_mode,
         "`auto` goes on from the last checkpoint if there is one, `disable` starts afresh, a "
         "folder goes on from that checkpoint.");
  t.bind("trainer.logger", &r.logger, "Where metrics go: `console`, `jsonl`, `tensorboard`.");
  t.bind("trainer.lexicon", &r.lexicon,
         "File of words that judges generated text at validation; empty: no judge.");
  t.bind("trainer.val_samples", &r.val_samples, "Generated texts shown at each validation.")
      .at_least(0);
  t.bind("trainer.seed", &r.seed, "Start of every random stream; the same seed, the same run.")
      .at_least(0);
}

Status wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Status divides(std::string_view small_key, std::int64_t small, std::string_view large_key,
               std::int64_t large) {
  if (small >= 1 && large % small == 0) return {};
  return wrong(format("{} {} does not divide {} {}", small_key, small, large_key, large));
}

bool valid_resume_mode(const std::string& mode) {
  // A single word that is neither keyword is a slip of the pen, not a folder.
  return mode == "auto" || mode == "disable" || mode.find('/') != std::string::npos;
}

Status validate_lora(const std::string& at, const ModelConfig& m) {
  if (m.lora.rank > 0 && m.lora.target_modules.empty())
    return wrong(at + ".lora_rank is set but " + at + ".target_modules is empty");
  return {};
}

}  // namespace

ConfigTable Job::bind() {
  ConfigTable t;
  t.bind("task", &task, "What to train: which stage of the pipeline this file describes.")
      .one_of({"sft", "reward", "ppo", "grpo"});
  bind_device(t, *this);
  bind_data(t, data);
  bind_model(t, "actor_rollout_ref.model", actor_model,
             "Folder of the actor (`config.json`, weights if it is trained already); the only "
             "model of sft; what the reward model starts from in reward.",
             true);
  bind_actor(t, actor);
  bind_rollout(t, *this);
  bind_critic(t, *this);
  bind_algorithm(t, algorithm);
  bind_trainer(t, trainer);
  return t;
}

Status Job::load(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                 Job& job) {
  ConfigTable table = job.bind();
  NEAP_TRY(table.load_file(file));
  job.folder = file.parent_path();
  for (const std::string& text : overrides) NEAP_TRY(table.apply_override(text));
  const auto is_set = [&](std::string_view key) { return table.find(key)->is_set; };
  if (is_set("actor_rollout_ref.actor.clip_ratio")) {
    if (!is_set("actor_rollout_ref.actor.clip_ratio_low"))
      job.actor.clip_ratio_low = job.actor.clip_ratio;
    if (!is_set("actor_rollout_ref.actor.clip_ratio_high"))
      job.actor.clip_ratio_high = job.actor.clip_ratio;
  }
  if (job.task == "grpo" && !is_set("algorithm.adv_estimator"))
    job.algorithm.adv_estimator = "grpo";
  return job.validate().with_context(format("checking {}", file.string()));
}

Status Job::validate() const {
  if (actor_model.path.empty())
    return wrong(
        "actor_rollout_ref.model.path is missing: the folder with the model's config.json");
  NEAP_TRY(validate_lora("actor_rollout_ref.model", actor_model));
  NEAP_TRY(validate_lora("critic.model", critic.model));
  if (!valid_resume_mode(trainer.resume_mode)) {
    return wrong(
        format("trainer.resume_mode is \"{}\"; it can be \"auto\", \"disable\" or the path "
               "of a checkpoint folder (with a /)",
               trainer.resume_mode));
  }
  for (const std::string& sink : trainer.logger) {
    if (sink != "console" && sink != "jsonl" && sink != "tensorboard")
      return wrong(format(
          "trainer.logger has \"{}\"; it can hold \"console\", \"jsonl\", \"tensorboard\"", sink));
  }
  if (!has_rollout()) {
    return divides("data.micro_batch_size_per_gpu", data.micro_batch_size_per_gpu,
                   "data.train_batch_size", data.train_batch_size);
  }
  if (reward_model.path.empty())
    return wrong(format("reward_model.model.path is missing: {} needs a reward model", task));
  const bool gae = algorithm.adv_estimator == "gae";
  if (gae != has_critic()) {
    return wrong(format("algorithm.adv_estimator \"{}\" does not go with task \"{}\"; take \"{}\"",
                        algorithm.adv_estimator, task, has_critic() ? "gae" : "grpo"));
  }
  const bool groups = algorithm.adv_estimator == "grpo" || algorithm.adv_estimator == "rloo";
  if (groups && rollout.n < 2) {
    return wrong(
        format("actor_rollout_ref.rollout.n is 1; {} compares at least 2 responses to a "
               "prompt",
               algorithm.adv_estimator));
  }
  NEAP_TRY(divides("actor_rollout_ref.actor.ppo_mini_batch_size", actor.ppo_mini_batch_size,
                   "data.train_batch_size", data.train_batch_size));
  NEAP_TRY(divides("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
                   actor.ppo_micro_batch_size_per_gpu,
                   "ppo_mini_batch_size x rollout.n =", actor.ppo_mini_batch_size * rollout.n));
  if (has_critic()) {
    NEAP_TRY(divides("critic.ppo_mini_batch_size", critic.ppo_mini_batch_size,
                     "data.train_batch_size", data.train_batch_size));
    NEAP_TRY(divides("critic.ppo_micro_batch_size_per_gpu", critic.ppo_micro_batch_size_per_gpu,
                     "ppo_mini_batch_size x rollout.n =", critic.ppo_mini_batch_size * rollout.n));
  }
  return {};
}

std::filesystem::path Job::resolve(const std::string& path) const {
  const std::filesystem::path p(path);
  return p.is_absolute() || p.empty() ? p : folder / p;
}

bool Job::uses_reference() const {
  return has_rollout() && (algorithm.use_kl_in_reward || actor.use_kl_loss);
}
bool Job::reference_is_actor_base() const {
  return uses_reference() && actor_model.lora.rank > 0 &&
         (reference_model.path.empty() || reference_model.path == actor_model.path);
}
const std::string& Job::reference_path() const {
  return reference_model.path.empty() ? actor_model.path : reference_model.path;
}
const std::string& Job::critic_path() const {
  return critic.model.path.empty() ? reward_model.path : critic.model.path;
}
std::int64_t Job::sequences_per_step() const {
  return data.train_batch_size * (has_rollout() ? rollout.n : 1);
}
std::int64_t Job::rollout_batch() const {
  const std::int64_t all = sequences_per_step();
  return rollout.batch_size == 0 ? all : std::min(rollout.batch_size, all);
}
std::int64_t Job::reference_micro_batch() const {
  return reference_micro_batch_size_per_gpu != 0 ? reference_micro_batch_size_per_gpu
                                                 : rollout.log_prob_micro_batch_size_per_gpu;
}
std::int64_t Job::reward_micro_batch() const {
  return reward_micro_batch_size_per_gpu != 0 ? reward_micro_batch_size_per_gpu
                                              : rollout.log_prob_micro_batch_size_per_gpu;
}
std::int64_t Job::values_micro_batch() const {
  return critic.forward_micro_batch_size_per_gpu != 0 ? critic.forward_micro_batch_size_per_gpu
                                                      : critic.ppo_micro_batch_size_per_gpu;
}
std::int64_t Job::max_sequence_length() const {
  return data.max_prompt_length + data.max_response_length;
}

}  // namespace neap::plan
