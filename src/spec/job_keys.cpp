// Every key of a configuration file, with its limits and its words for docs/configuration.md.
#include "spec/checkpointing.h"
#include "spec/job.h"
#include "spec/loss_kinds.h"
#include "spec/optimizer.h"
#include "spec/presets.h"

namespace neap::spec {
namespace {

// Sections that occur more than once in the file (actor and critic, actor and reward model) are
// bound by the functions below.

template <class Enum>
ConfigTable::Key& bind_enum(ConfigTable& t, const std::string& path, Enum* field,
                            Result<Enum> (*parse)(std::string_view), std::string help) {
  return t.bind(
      path,
      [field, parse](const std::string& text) -> Status {
        NEAP_TRY_ASSIGN(*field, parse(text));
        return {};
      },
      [field] { return std::string(to_string(*field)); }, std::move(help));
}

void bind_model(ConfigTable& t, const std::string& at, ModelConfig& m, const std::string& path_help,
                bool trainable) {
  t.bind(at + ".path", &m.path, path_help);
  t.bind(at + ".tokenizer_path", &m.tokenizer_path,
         at == "actor_rollout_ref.model"
             ? "Folder with `tokenizer.json`; empty: the model's folder."
             : "Folder with this model's `tokenizer.json`; empty: the model's folder. A tokenizer "
               "that "
               "gives other ids than the actor's is an error.");
  if (!trainable) return;
  t.bind(at + ".activation_checkpointing", &m.activation_checkpointing,
         "What each block keeps in the forward pass for its backward pass. `none`: every tensor; "
         "`selective`: all but the outputs of norms, rotations and activations, which are computed "
         "again; `full`: its input only, the rest is computed again; `auto`: the plan chooses for "
         "each tensor and block what takes the least time and fits. The results are the same.")
      .one_of(checkpoint_mode_names());
  t.bind(at + ".enable_gradient_checkpointing", &m.enable_gradient_checkpointing,
         "verl's name for `activation_checkpointing = \"full\"`.");
  t.bind(at + ".lora_rank", &m.lora.rank,
         "Rank of LoRA adapters; 0 trains every weight. Adapters shrink gradients and optimizer "
         "states to their own size.")
      .at_least(0)
      .at_most(4096);
  t.bind(at + ".lora_alpha", &m.lora.alpha, "LoRA's scale: updates are scaled by alpha / rank.")
      .at_least(0);
  t.bind(at + ".target_modules", &m.lora.targets,
         "Linear layers that get an adapter, by their last name (`q_proj`), or `all-linear`.");
  t.bind(at + ".lora_adapter_path", &m.lora_adapter_path,
         "Folder of a LoRA adapter in PEFT's form that training continues; rank, alpha and layers "
         "are the adapter's. Empty: adapters are new.");
}

void bind_optimizer(ConfigTable& t, const std::string& at, OptimizerConfig& o) {
  t.bind(at + ".optimizer", &o.kind, "Optimizer; docs/training.md compares them.")
      .one_of(optimizer_names());
  t.bind(at + ".lr", &o.lr, "Learning rate after warm-up.").at_least(0);
  t.bind(at + ".weight_decay", &o.weight_decay,
         "Decoupled weight decay; sgd adds it to the gradient, as `torch.optim.SGD` does.")
      .at_least(0);
  t.bind(at + ".beta1", &o.beta1, "adamw: decay of the first moment.").at_least(0).at_most(1);
  t.bind(at + ".beta2", &o.beta2, "adamw: decay of the second moment.").at_least(0).at_most(1);
  t.bind(at + ".eps", &o.eps, "adamw: added to the root of the second moment.").at_least(0);
  t.bind(at + ".beta2_decay", &o.beta2_decay,
         "adafactor: the second moment decays by 1 - step^beta2_decay.")
      .at_least(-1)
      .at_most(0);
  t.bind(at + ".clip_threshold", &o.clip_threshold,
         "adafactor: an update whose root mean square is larger is scaled down to it.")
      .at_least(1e-6);
  t.bind(at + ".eps1", &o.eps1, "adafactor: added to the squared gradient.").at_least(0);
  t.bind(at + ".eps2", &o.eps2, "adafactor: least size of a parameter for relative steps.")
      .at_least(0);
  t.bind(at + ".relative_step", &o.relative_step,
         "adafactor: the step is min(lr, 1 / sqrt(step)) times the root mean square of the "
         "parameter, as in the paper with `lr = 0.01`; false: lr itself.");
  t.bind(at + ".momentum", &o.momentum, "sgd and sm3: decay of the momentum buffer; 0: no buffer.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".nesterov", &o.nesterov, "sgd: Nesterov's momentum.");
  t.bind(at + ".state_dtype", &o.state_dtype,
         "Type of the optimizer's moments. bfloat16 is written with stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  t.bind(at + ".gradient_dtype", &o.gradient_dtype,
         "Type in which gradients of micro-batches add up. bfloat16 needs bfloat16 weights.")
      .one_of({"float32", "bfloat16"});
  t.bind(at + ".master_dtype", &o.master_dtype,
         "Type of the weights that updates are added to. float32: bfloat16 weights have a float32 "
         "copy. bfloat16: the weights have no copy and take updates with stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  t.bind(at + ".lr_warmup_steps", &o.lr_warmup_steps, "Linear warm-up from zero.")
      .in("optimizer steps")
      .at_least(0);
  t.bind(at + ".lr_warmup_steps_ratio", &o.lr_warmup_steps_ratio,
         "Share of all optimizer steps that warm up, rounded up, where `lr_warmup_steps` is 0.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".lr_scheduler_type", &o.lr_schedule, "Learning rate after the warm-up.")
      .one_of({"constant", "linear", "cosine"});
  t.bind(at + ".min_lr_ratio", &o.min_lr_ratio,
         "Where `linear` and `cosine` end, as a share of `lr`.")
      .at_least(0)
      .at_most(1);
}

void bind_loss_aggregation(ConfigTable& t, const std::string& path, LossAggregation* field) {
  bind_enum(t, path, field, parse_loss_aggregation,
            "How a loss per token becomes one number; docs/algorithms.md has the denominators.")
      .one_of(loss_aggregation_names());
}

ConfigTable::Key& bind_kl(ConfigTable& t, const std::string& path, KlKind* field,
                          std::string help) {
  return bind_enum(
             t, path, field, parse_kl,
             std::move(help) +
                 " With `+` its gradient is that of `k2`, whose mean is the gradient of the KL.")
      .one_of(kl_names());
}

void bind_device(ConfigTable& t, Job& job) {
  t.bind("device.kind", &job.device.kind,
         "`auto` takes the GPU if there is one, else the host device.")
      .one_of({"auto", "cuda", "host"});
  t.bind("device.memory", &job.device.memory,
         "Ceiling for everything that a rank keeps on its device; `0 B`: all that the device "
         "has.");
  t.bind("device.ordinal", &job.device.ordinal,
         "Which GPU. The ranks of a machine take this one and those after it.")
      .at_least(0);
  t.bind("device.dtype", &job.device.dtype,
         "Type of weights in forward and backward; `auto`: bfloat16 on a GPU, float32 on the host. "
         "With bfloat16 the optimizer keeps float32 masters unless `optim.master_dtype` says "
         "otherwise.")
      .one_of({"auto", "float32", "bfloat16"});
  t.bind("memory.residency", &job.memory.residency,
         "`auto`: the plan decides what leaves the device between the phases that need it; `all`: "
         "everything stays.")
      .one_of({"auto", "all"});
  bind_enum(t, "memory.update", &job.memory.update, parse_update_choice,
            "What is on the device at once while a model is trained: `joined`: weights, gradients, "
            "activations and optimizer states; `split`: forward and backward run without optimizer "
            "states, the update without activations; `streamed`: the update also brings the "
            "optimizer states from the host a window at a time; `auto`: the cheapest that fits. "
            "Losses and weights are the same bit by bit.")
      .one_of(update_choice_names());
  t.bind("memory.allow", &job.memory.allow,
         "What the plan may do so that the job fits, the fastest of it. `recompute`: compute "
         "activations again, where `activation_checkpointing` is `auto`; `move`: keep tags on the "
         "host while no phase needs them; `stream`: `streamed` updates; `micro_batch`: smaller "
         "micro-batches in training than configured; `bf16_states`: `state_dtype` bfloat16. The "
         "first three leave every bit of the results as it is. `micro_batch` adds the same numbers "
         "in another order. `bf16_states` is another training: it is taken where a step gets 5 % "
         "faster by it or nothing else fits, and a resumed run keeps what its checkpoint has.")
      .one_of(measure_names());
  t.bind("memory.overlap", &job.memory.overlap,
         "Copies to and from the host begin while an earlier phase computes, where the plan finds "
         "room "
         "and time for them. Losses and weights are the same bit by bit.");
  t.bind(
      "memory.host_budget", &job.memory.host_budget,
      "Most host memory for copies of what left the device; `0 B`: what a GPU's machine has free.");
  t.bind("memory.alloc_conf", &job.memory.alloc_conf,
         "Settings of the transient pools' allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.");
}

void bind_policy_loss(ConfigTable& t, const std::string& at, ActorConfig& a) {
  t.bind(at + ".dro_beta", &a.dro_beta,
         "dro: weight of the squared distance to the old policy; has to be set.")
      .at_least(0);
  t.bind(at + ".tau_pos", &a.tau_pos, "sapo: steepness of the gate for positive advantages.")
      .at_least(1e-6);
  t.bind(at + ".tau_neg", &a.tau_neg, "sapo: and for the others.").at_least(1e-6);
  t.bind(at + ".clip_cov_ratio", &a.clip_cov_ratio,
         "clip_cov: share of a micro-batch's tokens that are left out, at least one.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".clip_cov_lb", &a.clip_cov_lb,
         "clip_cov: only tokens of a larger covariance are left out.");
  t.bind(at + ".clip_cov_ub", &a.clip_cov_ub, "clip_cov: and of a smaller one than this.");
  t.bind(at + ".kl_cov_ratio", &a.kl_cov_ratio,
         "kl_cov: share of a micro-batch's tokens that are pulled to the old policy, at least one.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".ppo_kl_coef", &a.ppo_kl_coef, "kl_cov: strength of the pull.").at_least(0);
}

void bind_actor(ConfigTable& t, ActorConfig& a) {
  const std::string at = "actor_rollout_ref.actor";
  t.bind(at + ".ppo_mini_batch_size", &a.ppo_mini_batch_size,
         "Prompts of one optimizer step, of all ranks together (times `rollout.n` sequences); "
         "divides `data.train_batch_size`.")
      .in("prompts")
      .at_least(1);
  t.bind(at + ".ppo_micro_batch_size_per_gpu", &a.ppo_micro_batch_size_per_gpu,
         "Sequences that go through forward and backward at once.")
      .in("sequences")
      .at_least(1);
  t.bind(at + ".use_dynamic_bsz", &a.use_dynamic_bsz,
         "Packs sequences without padding into micro-batches that tokens bound, in every phase of "
         "ppo and grpo behind the rollout, instead of a number of padded sequences.");
  t.bind(at + ".ppo_max_token_len_per_gpu", &a.ppo_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the actor's training; at least "
         "`data.max_prompt_length` + `data.max_response_length`.")
      .in("tokens")
      .at_least(1);
  t.bind(at + ".ppo_epochs", &a.ppo_epochs, "Passes over a step's sequences.").at_least(1);
  bind_enum(t, at + ".policy_loss.loss_mode", &a.loss_mode, parse_policy_loss,
            "Loss of a token: `vanilla`: PPO's clip and dual clip; `gspo`: the clip of one ratio a "
            "sequence; `cispo`: the clipped ratio weighs the log-probability; `gpg`: the advantage "
            "alone does; `dro`, `sapo`, `geo_mean`, `clip_cov`, `kl_cov`: docs/algorithms.md.")
      .one_of(policy_loss_names());
  bind_policy_loss(t, at + ".policy_loss", a);
  t.bind(at + ".clip_ratio", &a.clip_ratio,
         "PPO's clip; sets `clip_ratio_low` and `clip_ratio_high` where they are not set.")
      .at_least(0);
  t.bind(at + ".clip_ratio_low", &a.clip_ratio_low,
         "Ratio is clipped at 1 - this; 1 or more: not from below.")
      .at_least(0);
  t.bind(at + ".clip_ratio_high", &a.clip_ratio_high, "Ratio is clipped at 1 + this.").at_least(0);
  t.bind(at + ".clip_ratio_c", &a.clip_ratio_c,
         "Dual clip: for negative advantages, bounds the loss at clip_ratio_c times the absolute "
         "advantage; 0: does not.")
      .at_least(0);
  t.bind(at + ".entropy_coeff", &a.entropy_coeff, "Weight of the entropy bonus.").at_least(0);
  t.bind(at + ".use_kl_loss", &a.use_kl_loss, "Adds the KL to the reference to the loss.");
  t.bind(at + ".kl_loss_coef", &a.kl_loss_coef, "Weight of that KL.").at_least(0);
  bind_kl(t, at + ".kl_loss_type", &a.kl_loss_type, "Estimator of that KL.");
  bind_loss_aggregation(t, at + ".loss_agg_mode", &a.loss_agg_mode);
  t.bind(at + ".loss_scale_factor", &a.loss_scale_factor,
         "Length that `seq-mean-token-sum-norm` divides by; 0: `data.max_response_length`.")
      .in("tokens")
      .at_least(0);
  t.bind(at + ".grad_clip", &a.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_optimizer(t, at + ".optim", a.optim);
}

void bind_validation_sampling(ConfigTable& t, const std::string& at, ValidationSampling& v) {
  t.bind(at + ".n", &v.n,
         "Responses for each held-out prompt, in validation and `neap eval`; more than one needs "
         "`do_sample`.")
      .at_least(1);
  t.bind(at + ".do_sample", &v.do_sample,
         "Samples the responses to held-out prompts; false: takes the likeliest token each time.");
  t.bind(at + ".temperature", &v.temperature, "Temperature of that sampling.").at_least(0);
  t.bind(at + ".top_p", &v.top_p, "As `rollout.top_p`.").at_least(0).at_most(1);
  t.bind(at + ".top_k", &v.top_k, "As `rollout.top_k`.").at_least(-1);
}

void bind_rollout_sampling(ConfigTable& t, const std::string& at, RolloutConfig& r) {
  t.bind(at + ".temperature", &r.temperature, "Logits are divided by it before sampling.")
      .at_least(0);
  t.bind(at + ".top_p", &r.top_p,
         "Samples from the smallest set of tokens whose cumulative probability reaches top_p.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".top_k", &r.top_k, "Samples from this many most likely tokens; -1: all.")
      .at_least(-1);
  t.bind(at + ".min_p", &r.min_p,
         "Drops tokens whose probability is under this share of the likeliest one's.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".repetition_penalty", &r.repetition_penalty,
         "Logits of tokens that are in the prompt or the response are divided by it where they are "
         "positive and multiplied where they are negative; 1: off.")
      .at_least(1e-6);
  t.bind(at + ".presence_penalty", &r.presence_penalty,
         "Subtracted from the logits of tokens that are in the response.");
  t.bind(at + ".frequency_penalty", &r.frequency_penalty,
         "Subtracted from a token's logit for each time that it is in the response.");
}

void bind_rollout(ConfigTable& t, Job& job) {
  RolloutConfig& r = job.rollout;
  const std::string at = "actor_rollout_ref.rollout";
  t.bind(at + ".n", &r.n, "Responses for each prompt; grpo compares them.").at_least(1);
  bind_rollout_sampling(t, at, r);
  t.bind(at + ".stop", &r.stop,
         "A response ends with any of these texts, as it does with an end token.");
  t.bind(
      at + ".draw_lengths", &r.draw_lengths,
      "For measurements with random weights, whose responses have no end of their own: ends each "
      "response at a length from its random stream, from 1/32 of "
      "`data.max_response_length` to all of it, uniform in the logarithm.");
  t.bind(at + ".batch_size", &r.batch_size,
         "Sequences that a rank decodes together, which is what its KV cache has to hold; 0: its "
         "whole share of the batch.")
      .in("sequences")
      .at_least(0);
  t.bind(at + ".max_num_batched_tokens", &r.max_num_batched_tokens,
         "Tokens of prompts that one pass prefills: whole prompts, as many as fit with "
         "`data.max_prompt_length` tokens each, or a part of a longer one. It bounds the memory of "
         "prefilling.")
      .in("tokens")
      .at_least(1);
  t.bind(at + ".enable_chunked_prefill", &r.enable_chunked_prefill,
         "Prompts of more tokens than `max_num_batched_tokens` are prefilled in parts; false: no "
         "prompt may be longer.");
  t.bind(
      at + ".calculate_log_probs", &r.calculate_log_probs,
      "Keeps the log-probability of each sampled token, after penalties and temperature and before "
      "`min_p`, "
      "`top_k` and `top_p`, and logs its distance to the trainer's; `algorithm.rollout_correction` "
      "implies it.");
  t.bind(at + ".log_prob_micro_batch_size_per_gpu", &r.log_prob_micro_batch_size_per_gpu,
         "Sequences whose old log-probabilities are computed at once.")
      .in("sequences")
      .at_least(1);
  t.bind(at + ".log_prob_max_token_len_per_gpu", &r.log_prob_max_token_len_per_gpu,
         "Tokens of a packed micro-batch whose old log-probabilities are computed at once; 0: as "
         "`actor.ppo_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0);
  bind_validation_sampling(t, at + ".val_kwargs", r.val_kwargs);
  bind_model(t, "actor_rollout_ref.ref.model", job.reference_model,
             "Folder of the reference model; empty: the actor's start.", false);
  t.bind("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
         &job.reference_micro_batch_size_per_gpu,
         "Sequences whose reference log-probabilities are computed at once; 0: as "
         "`rollout.log_prob_micro_batch_size_per_gpu`, in dpo as in training.")
      .in("sequences")
      .at_least(0);
  t.bind("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
         &job.reference_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the reference; 0: as "
         "`rollout.log_prob_max_token_len_per_gpu`, in dpo as in training.")
      .in("tokens")
      .at_least(0);
}

void bind_critic(ConfigTable& t, Job& job) {
  CriticConfig& c = job.critic;
  bind_model(t, "critic.model", c.model,
             "Folder of the model that the critic starts from; empty: the reward model's.", true);
  t.bind(
      "critic.model.init_head", &c.init_head,
      "Starts the scalar head at zero where the folder has none (a language model's). Without it "
      "such a folder is an error.");
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
  t.bind("critic.ppo_max_token_len_per_gpu", &c.ppo_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the critic's training.")
      .in("tokens")
      .at_least(1);
  t.bind("critic.forward_max_token_len_per_gpu", &c.forward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch whose values are computed at once; 0: as "
         "`ppo_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0);
  t.bind("critic.ppo_epochs", &c.ppo_epochs, "Passes over a step's sequences.").at_least(1);
  t.bind("critic.cliprange_value", &c.cliprange_value,
         "New values are clipped to this distance from the old ones.")
      .at_least(0);
  bind_loss_aggregation(t, "critic.loss_agg_mode", &c.loss_agg_mode);
  t.bind("critic.grad_clip", &c.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_optimizer(t, "critic.optim", c.optim);
  bind_model(t, "reward_model.model", job.reward_model,
             "Folder of the reward model; empty: none, and `[[reward.functions]]` alone score "
             "responses.",
             false);
  t.bind("reward_model.weight", &job.reward_model_weight,
         "Weight of its score in the reward, which is the sum with those of "
         "`[[reward.functions]]`.");
  t.bind("reward_model.micro_batch_size_per_gpu", &job.reward_micro_batch_size_per_gpu,
         "Sequences that are scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0);
  t.bind("reward_model.forward_max_token_len_per_gpu", &job.reward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch that is scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0);
  t.bind("reward_model.center_rewards_coefficient", &job.center_rewards_coefficient,
         "reward: weight of the square of a pair's summed scores in the loss, which keeps scores "
         "around 0.")
      .at_least(0);
  job.reward.bind(t);
}

void bind_dpo(ConfigTable& t, DpoConfig& d) {
  bind_enum(t, "dpo.loss_type", &d.loss_type, parse_preference_loss,
            "Loss of a pair; docs/algorithms.md has the formulas.")
      .one_of(preference_loss_names());
  t.bind("dpo.beta", &d.beta, "Strength of the pull to the reference.").at_least(1e-6);
  t.bind("dpo.label_smoothing", &d.label_smoothing,
         "Probability that a label is wrong, in `sigmoid`, `sigmoid_norm` and `robust`.")
      .at_least(0)
      .at_most(1);
  t.bind("dpo.precompute_ref_log_probs", &d.precompute_ref_log_probs,
         "Computes the reference's log-probabilities of all rows once, before the first step; then "
         "the "
         "reference's weights are given up.");
}

void bind_rollout_correction(ConfigTable& t, RolloutCorrectionConfig& c) {
  const std::string at = "algorithm.rollout_correction";
  t.bind(at + ".rollout_is", &c.rollout_is,
         "Weighs the loss with the ratio of the trainer's to the rollout's probability: of each "
         "`token`, or of the whole `sequence`; `null`: does not.")
      .one_of(rollout_is_names());
  t.bind(at + ".rollout_is_threshold", &c.rollout_is_threshold,
         "`HI`: larger weights become HI (truncated importance sampling); `LO_HI`: weights outside "
         "become 0 (IcePop).");
  t.bind(at + ".rollout_is_batch_normalize", &c.rollout_is_batch_normalize,
         "Divides the weights by their mean over the batch.");
  t.bind(
      at + ".bypass_mode", &c.bypass_mode,
      "The rollout's log-probabilities stand for the trainer's old ones, which are not computed. "
      "Weights and rejections are made of the policy as each micro-batch finds it.");
  t.bind(at + ".loss_type", &c.loss_type,
         "Loss of bypass mode. `ppo_clip`: PPO's, whose ratio is the weight already; `reinforce`: "
         "the "
         "log-probability, times the weight of `rollout_is`.")
      .one_of(bypass_loss_names());
  t.bind(at + ".rollout_rs", &c.rollout_rs,
         "Leaves tokens or sequences out of the loss whose divergence is too large: `token_k1`, "
         "`seq_sum_k1`, `seq_mean_k1`, with `k2` or `k3` as well, `seq_max_k2`, `seq_max_k3`, or "
         "several with commas; `null`: none.");
  t.bind(
      at + ".rollout_rs_threshold", &c.rollout_rs_threshold,
      "Of `k1`: `LO_HI` for the ratio of probabilities, `HI` for 1/HI to HI; of `k2` and `k3` the "
      "largest value. One for all options, or one each with commas.");
}

void bind_truncation(ConfigTable& t, AlgorithmConfig& a) {
  t.bind("algorithm.filter_groups.enable", &a.filter_groups.enable,
         "DAPO's dynamic sampling: prompts whose responses all have the same score are dropped, "
         "and more prompts are generated until the batch is full.");
  t.bind("algorithm.filter_groups.metric", &a.filter_groups.metric,
         "What is compared: `score` or `seq_reward`, both the sum of a response's rewards; "
         "`seq_final_reward`: that less the KL in the reward; `acc`: the accuracy that a reward "
         "function tells.")
      .one_of({"score", "seq_reward", "seq_final_reward", "acc"});
  t.bind("algorithm.filter_groups.max_num_gen_batches", &a.filter_groups.max_num_gen_batches,
         "Most batches generated for one step; more is an error. 0: no limit.")
      .in("batches")
      .at_least(0);
  t.bind("algorithm.mask_truncated_completions", &a.mask_truncated_completions,
         "Leaves responses without an end token out of the loss; their scores still count in their "
         "group.");
  t.bind("algorithm.stop_properly_penalty_coef", &a.stop_properly_penalty_coef,
         "Scores of responses without an end token are multiplied by it; negative: become it.")
      .at_most(1);
  t.bind("algorithm.missing_eos_penalty", &a.missing_eos_penalty,
         "Taken off the score of a response without an end token.")
      .at_least(0);
}

void bind_algorithm(ConfigTable& t, AlgorithmConfig& a) {
  t.bind(
       "algorithm.preset", &a.preset,
       "Whose defaults apply to keys that are not set: those of `verl`, `openrlhf` or `trl` as in "
       "docs/algorithms.md; empty: Neap's, which are on this page.")
      .one_of({"", "verl", "openrlhf", "trl"});
  bind_enum(t, "algorithm.adv_estimator", &a.adv_estimator, parse_advantage_estimator,
            "How rewards become advantages: `gae` in ppo, which has the critic that it needs; the "
            "others in grpo, which has none. docs/algorithms.md has the formulas.")
      .one_of(advantage_estimator_names());
  t.bind("algorithm.gamma", &a.gamma, "Discount of later rewards.").at_least(0).at_most(1);
  t.bind("algorithm.lam", &a.lam, "Lambda of GAE.").at_least(0).at_most(1);
  t.bind("algorithm.use_kl_in_reward", &a.use_kl_in_reward,
         "Takes the KL to the reference off each token's reward.");
  bind_kl(t, "algorithm.kl_penalty", &a.kl_penalty, "Estimator of that KL.");
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
         "Divides grpo's advantages by the group's standard deviation; false: Dr. GRPO.");
  t.bind("algorithm.norm_adv_eps", &a.norm_adv_eps, "Added to that standard deviation.")
      .at_least(0);
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
  t.bind("trainer.best_metric", &r.best_metric,
         "Metric of validation, as `val/score/mean`, whose best checkpoint is kept besides the "
         "newest; the link `best` points to it. Empty: none is.");
  t.bind("trainer.best_mode", &r.best_mode, "Whether the highest or the lowest value is the best.")
      .one_of({"max", "min"});
  t.bind("trainer.stop_metric", &r.stop_metric,
         "Metric of validation that ends the training before its last step, where it reaches "
         "`trainer.stop_value`. Empty: none does.");
  t.bind("trainer.stop_value", &r.stop_value, "Value of that metric at which the training ends.");
  t.bind("trainer.stop_mode", &r.stop_mode,
         "`max`: the metric reaches the value from below; `min`: from above.")
      .one_of({"max", "min"});
  t.bind("trainer.max_shard_size", &r.max_shard_size,
         "Weights over this size are saved in several files; at least 1 MB.");
  t.bind("trainer.default_local_dir", &r.default_local_dir,
         "Folder for checkpoints, metrics and the trace.");
  t.bind("trainer.resume_mode", &r.resume_mode,
         "`auto` resumes from the last checkpoint if there is one, `disable` starts anew, a "
         "folder resumes from that checkpoint.");
  t.bind("trainer.logger", &r.logger, "Where metrics go: `console`, `jsonl`, `tensorboard`.");
  t.bind("trainer.lexicon", &r.lexicon,
         "File of words that judges generated text at validation; empty: no judge.");
  t.bind("trainer.val_samples", &r.val_samples, "Generated texts shown at each validation.")
      .at_least(0);
  t.bind("trainer.seed", &r.seed, "Start of every random stream; the same seed, the same run.")
      .at_least(0);
  t.bind(
      "trainer.deterministic", &r.deterministic,
      "Makes two runs equal bit by bit on a GPU, too, at the cost in docs/training.md. On the host "
      "they are without it.");
  t.bind("trainer.nnodes", &r.nnodes,
         "Machines of the job; 0: as the launcher says, one in a plan. See docs/parallel.md.")
      .at_least(0)
      .at_most(1 << 16);
  t.bind(
       "trainer.n_gpus_per_node", &r.n_gpus_per_node,
       "Ranks on each machine, one a GPU (or a share of the CPU); 0: as the launcher says, one in "
       "a plan.")
      .at_least(0)
      .at_most(1 << 10);
}

}  // namespace

ConfigTable Job::bind() {
  ConfigTable t;
  bind_enum(
      t, "task", &task, parse_task,
      "Which stage of the pipeline this file describes. `eval` trains nothing: it is what `neap "
      "eval` runs and `neap plan` can plan.")
      .one_of(task_names());
  bind_device(t, *this);
  bind_data(t, data);
  bind_model(t, "actor_rollout_ref.model", actor_model,
             "Folder of the actor (`config.json`, weights if it is trained already); the only "
             "model of sft; what the reward model starts from in reward.",
             true);
  bind_actor(t, actor);
  bind_rollout(t, *this);
  t.bind("actor_rollout_ref.nccl_timeout", &nccl_timeout,
         "Longest that a rank waits for the others on GPUs; it has to outlast the writing of a "
         "checkpoint.")
      .in("seconds")
      .at_least(1);
  bind_critic(t, *this);
  bind_algorithm(t, algorithm);
  bind_truncation(t, algorithm);
  bind_rollout_correction(t, algorithm.rollout_correction);
  bind_dpo(t, dpo);
  bind_trainer(t, trainer);
  return t;
}

}  // namespace neap::spec
