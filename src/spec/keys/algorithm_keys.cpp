// The keys of losses, advantages and corrections, with limits and help texts for
// docs/configuration.md.
#include "spec/keys/job_keys.h"
#include "spec/keys/micro_batches.h"
#include "spec/keys/size_checks.h"
#include "spec/keys/token_budgets.h"
#include "spec/types/loss_kinds.h"
#include "spec/types/presets.h"

namespace neap::spec {
namespace {

ConfigTable::Key& bind_kl(ConfigTable& t, const std::string& path, KlKind* field,
                          std::string help) {
  return bind_enum(
             t, path, field, parse_kl,
             std::move(help) +
                 " With `+` its gradient is that of `k2`, whose mean is the gradient of the KL.")
      .one_of(kl_names());
}

void bind_policy_loss(ConfigTable& t, const std::string& at, ActorConfig& a) {
  const auto of_loss = [&](const char* mode) { return needs(at + ".loss_mode", {mode}); };
  t.bind(at + ".dro_beta", &a.dro_beta,
         "Weight of the squared distance to the old policy; required.")
      .at_least(0)
      .only(of_loss("dro"));
  t.bind(at + ".tau_pos", &a.tau_pos, "Steepness of the gate for positive advantages.")
      .at_least(1e-6)
      .only(of_loss("sapo"));
  t.bind(at + ".tau_neg", &a.tau_neg, "Steepness of the gate for the others.")
      .at_least(1e-6)
      .only(of_loss("sapo"));
  t.bind(at + ".clip_cov_ratio", &a.clip_cov_ratio,
         "Fraction of a micro-batch's tokens that have no loss, at least one token.")
      .at_least(0)
      .at_most(1)
      .only(of_loss("clip_cov"));
  t.bind(at + ".clip_cov_lb", &a.clip_cov_lb, "Only tokens with a larger covariance have no loss.")
      .only(of_loss("clip_cov"));
  t.bind(at + ".clip_cov_ub", &a.clip_cov_ub, "Only tokens with a smaller covariance have no loss.")
      .only(of_loss("clip_cov"));
  t.bind(at + ".kl_cov_ratio", &a.kl_cov_ratio,
         "Fraction of a micro-batch's tokens with a KL penalty to the old policy, at least one "
         "token.")
      .at_least(0)
      .at_most(1)
      .only(of_loss("kl_cov"));
  t.bind(at + ".ppo_kl_coef", &a.ppo_kl_coef, "Weight of that penalty.")
      .at_least(0)
      .only(of_loss("kl_cov"));
}

void bind_rollout_correction(ConfigTable& t, RolloutCorrectionConfig& c) {
  const std::string at = "algorithm.rollout_correction";
  const ConfigCondition weighs = needs(at + ".rollout_is", {"token", "sequence"});
  t.bind(at + ".rollout_is", &c.rollout_is,
         "Multiplies the loss by the ratio of the trainer's to the rollout's probability: of each "
         "`token`, or of the whole `sequence`; `null`: off.")
      .one_of(rollout_is_names());
  t.bind(at + ".rollout_is_threshold", &c.rollout_is_threshold,
         "`HI`: larger weights become HI (truncated importance sampling); `LO_HI`: weights outside "
         "become 0 (IcePop).")
      .only(weighs);
  t.bind(at + ".rollout_is_batch_normalize", &c.rollout_is_batch_normalize,
         "Divides the weights by their mean over the batch.")
      .only(weighs);
  t.bind(at + ".bypass_mode", &c.bypass_mode,
         "Uses the rollout's log-probabilities as the old ones, which are then not computed. "
         "Weights and rejections use the current policy.");
  t.bind(at + ".loss_type", &c.loss_type,
         "Loss of bypass mode. `ppo_clip`: PPO's, whose ratio is the weight already; `reinforce`: "
         "the "
         "log-probability, times the weight of `rollout_is`.")
      .one_of(bypass_loss_names())
      .only(needs(at + ".bypass_mode", {true}));
  t.bind(at + ".rollout_rs", &c.rollout_rs,
         "Leaves tokens or sequences out of the loss whose divergence is too large: `token_k1`, "
         "`seq_sum_k1`, `seq_mean_k1`, with `k2` or `k3` as well, `seq_max_k2`, `seq_max_k3`, or "
         "several with commas; `null`: none.");
  t.bind(at + ".rollout_rs_threshold", &c.rollout_rs_threshold,
         "`k1`: `LO_HI` for the ratio of probabilities, `HI` for 1/HI to HI; `k2` and `k3`: the "
         "largest value. One for all options, or one each with commas.")
      .only(needs(at + ".rollout_rs", "not \"null\"", [&c] { return c.rejects(); }));
}

void bind_truncation(ConfigTable& t, AlgorithmConfig& a) {
  const ConfigCondition filters = needs("algorithm.filter_groups.enable", {true});
  t.bind("algorithm.filter_groups.enable", &a.filter_groups.enable,
         "DAPO's dynamic sampling: prompts whose responses all have the same score are dropped, "
         "and more prompts are generated until the batch is full.");
  t.bind("algorithm.filter_groups.metric", &a.filter_groups.metric,
         "The compared number: `score` or `seq_reward`, both the sum of a response's rewards; "
         "`seq_final_reward`: less the KL in the reward; `acc`: the accuracy that a reward "
         "function reports.")
      .one_of({"score", "seq_reward", "seq_final_reward", "acc"})
      .only(filters);
  t.bind("algorithm.filter_groups.max_num_gen_batches", &a.filter_groups.max_num_gen_batches,
         "Most batches generated for one step; more is an error. 0: no limit.")
      .in("batches")
      .at_least(0)
      .only(filters);
  t.bind("algorithm.mask_truncated_completions", &a.mask_truncated_completions,
         "Leaves responses without an end token out of the loss; their scores still count in their "
         "group.");
  t.bind("algorithm.stop_properly_penalty_coef", &a.stop_properly_penalty_coef,
         "Multiplies the scores of responses without an end token; a negative value replaces them.")
      .at_most(1);
  t.bind("algorithm.missing_eos_penalty", &a.missing_eos_penalty,
         "Subtracted from the score of a response without an end token.")
      .at_least(0);
}

}  // namespace

void bind_loss_aggregation(ConfigTable& t, const std::string& path, LossAggregation* field) {
  bind_enum(t, path, field, parse_loss_aggregation,
            "How the losses of tokens are reduced to one number; docs/algorithms.md has the "
            "denominators.")
      .one_of(loss_aggregation_names());
}

namespace {

void bind_policy(ConfigTable& t, const std::string& at, ActorConfig& a) {
  const ConfigTable::Section policies(t, of_policies());
  t.bind(at + ".ppo_mini_batch_size", &a.ppo_mini_batch_size,
         "Prompts of one optimizer step, of all ranks together (times `rollout.n` sequences); "
         "divides `data.train_batch_size`. 0: as that, one optimizer step for each batch.")
      .in("prompts")
      .at_least(0)
      .at_most(kMostRows);
  t.bind(at + ".ppo_micro_batch_size_per_gpu", &a.ppo_micro_batch_size_per_gpu,
         "Sequences of a padded micro-batch." + kAdapts)
      .in("sequences")
      .at_least(1)
      .at_most(kMostSequences)
      .only(where(kPacksPolicy, {false}));
  t.bind(kPacksPolicy, &a.use_dynamic_bsz,
         "Packs sequences without padding into micro-batches with a budget of tokens, in every "
         "phase of ppo and grpo except the rollout.");
  t.bind(at + ".ppo_max_token_len_per_gpu", &a.ppo_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the actor's training; at least "
         "`data.max_prompt_length` + `data.max_response_length`." +
             kHoldsRow)
      .in("tokens")
      .at_least(1)
      .at_most(kMostMicroTokens)
      .only(where(kPacksPolicy, {true}));
  t.bind(at + ".ppo_epochs", &a.ppo_epochs, "Passes over a step's sequences.")
      .at_least(1)
      .at_most(kMostEpochs);
  bind_enum(t, at + ".policy_loss.loss_mode", &a.loss_mode, parse_policy_loss,
            "Loss of a token; docs/algorithms.md has the formulas. `vanilla` is PPO's clip with "
            "dual clip.")
      .one_of(policy_loss_names());
  bind_policy_loss(t, at + ".policy_loss", a);
  const std::string mode = at + ".policy_loss.loss_mode";
  const ConfigCondition clips = where(mode, {"vanilla", "gspo", "cispo", "geo_mean", "clip_cov"});
  t.bind(at + ".clip_ratio", &a.clip_ratio,
         "PPO's clip; the default of `clip_ratio_low` and `clip_ratio_high`.")
      .at_least(0)
      .only(clips);
  t.bind(at + ".clip_ratio_low", &a.clip_ratio_low,
         "The ratio is clipped at 1 - this; 1 or more: not clipped from below.")
      .at_least(0)
      .only(clips);
  t.bind(at + ".clip_ratio_high", &a.clip_ratio_high, "The ratio is clipped at 1 + this.")
      .at_least(0)
      .only(clips);
  t.bind(at + ".clip_ratio_c", &a.clip_ratio_c,
         "Dual clip: for negative advantages, bounds the loss at clip_ratio_c times the absolute "
         "advantage; 0: off.")
      .at_least(0)
      .only(where(mode, {"vanilla"}));
  t.bind(at + ".entropy_coeff", &a.entropy_coeff, "Weight of the entropy bonus.").at_least(0);
  t.bind(at + ".use_kl_loss", &a.use_kl_loss, "Adds the KL to the reference to the loss.");
  const ConfigCondition kl = needs(at + ".use_kl_loss", {true}, "no KL is in the loss");
  t.bind(at + ".kl_loss_coef", &a.kl_loss_coef, "Weight of that KL.").at_least(0).only(kl);
  bind_kl(t, at + ".kl_loss_type", &a.kl_loss_type, "Estimator of that KL.").only(kl);
  bind_loss_aggregation(t, at + ".loss_agg_mode", &a.loss_agg_mode);
  t.at(at + ".loss_agg_mode")
      .only(where(mode, {"vanilla", "cispo", "gpg", "dro", "clip_cov", "kl_cov"}));
  t.bind(at + ".loss_scale_factor", &a.loss_scale_factor,
         "Length that the sums are divided by; 0: `data.max_response_length`.")
      .in("tokens")
      .at_least(0)
      .only(needs(at + ".loss_agg_mode", {"seq-mean-token-sum-norm"}));
}

}  // namespace

void bind_actor(ConfigTable& t, Job& job) {
  ActorConfig& a = job.actor;
  const std::string at = "actor_rollout_ref.actor";
  bind_policy(t, at, a);
  const ConfigTable::Section training(t, of_training());
  t.bind(at + ".grad_clip", &a.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_placement(t, at, job.actor_placement, &job.parallel.automatic.actor_zero, job);
  bind_optimizer(t, at + ".optim", a.optim);
  // The default for full fine-tuning of an existing model.
  default_of_tasks(
      t.at(at + ".optim.lr"), job,
      [](const Job& j) { return j.task == Task::kSft || j.task == Task::kReward; }, 1e-5);
}

void bind_algorithm(ConfigTable& t, Job& job) {
  AlgorithmConfig& a = job.algorithm;
  t.bind("algorithm.preset", &a.preset,
         "Whose defaults apply to keys that are not set (docs/configuration/presets.md); empty: "
         "Neap's.")
      .one_of({"", "verl", "openrlhf", "trl"});
  const ConfigTable::Section policies(t, of_policies());
  const std::string estimator = "algorithm.adv_estimator";
  bind_enum(t, "algorithm.adv_estimator", &a.adv_estimator, parse_advantage_estimator,
            "How advantages are computed; docs/algorithms.md has the formulas. `gae` needs the "
            "critic of ppo; the others are for grpo.")
      .one_of(advantage_estimator_names());
  default_of_tasks(
      t.at(estimator), job, [](const Job& j) { return j.task == Task::kGrpo; }, "grpo");
  t.bind("algorithm.gamma", &a.gamma, "Discount of later rewards.")
      .at_least(0)
      .at_most(1)
      .only(where(estimator, {"gae", "reinforce_plus_plus"}));
  t.bind("algorithm.lam", &a.lam, "Lambda of GAE.")
      .at_least(0)
      .at_most(1)
      .only(where(estimator, {"gae"}));
  t.bind("algorithm.use_kl_in_reward", &a.use_kl_in_reward,
         "Subtracts the KL to the reference from each token's reward.");
  const ConfigCondition kl = needs("algorithm.use_kl_in_reward", {true}, "no KL is in the reward");
  bind_kl(t, "algorithm.kl_penalty", &a.kl_penalty, "Estimator of that KL.").only(kl);
  t.bind("algorithm.kl_ctrl.type", &a.kl_ctrl_type,
         "`adaptive` adjusts the coefficient towards `target_kl`.")
      .one_of({"fixed", "adaptive"})
      .only(kl);
  t.bind("algorithm.kl_ctrl.kl_coef", &a.kl_coef, "Coefficient, or its initial value.")
      .at_least(0)
      .only(kl);
  const ConfigCondition adapts = needs("algorithm.kl_ctrl.type", {"adaptive"});
  t.bind("algorithm.kl_ctrl.horizon", &a.horizon,
         "Horizon of the adaptive controller: larger is slower.")
      .in("sequences")
      .at_least(1)
      .only(kl)
      .only(adapts);
  t.bind("algorithm.kl_ctrl.target_kl", &a.target_kl, "KL that the adaptive controller aims at.")
      .at_least(0)
      .only(kl)
      .only(adapts);
  t.bind("algorithm.norm_adv_by_std_in_grpo", &a.norm_adv_by_std_in_grpo,
         "Divides grpo's advantages by the group's standard deviation; false: Dr. GRPO.")
      .only(where(estimator, {"grpo"}));
  t.bind("algorithm.norm_adv_eps", &a.norm_adv_eps, "Added to that standard deviation.")
      .at_least(0)
      .only(where(estimator, {"grpo"}))
      .only(where("algorithm.norm_adv_by_std_in_grpo", {true}));
  bind_truncation(t, a);
  bind_rollout_correction(t, a.rollout_correction);
}

void bind_dpo(ConfigTable& t, DpoConfig& d) {
  const ConfigTable::Section dpo(t, of_task(Task::kDpo));
  bind_enum(t, "dpo.loss_type", &d.loss_type, parse_preference_loss,
            "Loss of a pair; docs/algorithms.md has the formulas.")
      .one_of(preference_loss_names());
  t.bind("dpo.beta", &d.beta, "Strength of the constraint to the reference.").at_least(1e-6);
  t.bind("dpo.label_smoothing", &d.label_smoothing, "Probability that a label is wrong.")
      .at_least(0)
      .at_most(1)
      .only(where("dpo.loss_type", {"sigmoid", "sigmoid_norm", "robust"}));
  t.bind("dpo.precompute_ref_log_probs", &d.precompute_ref_log_probs,
         "Computes the reference's log-probabilities of all rows once, before the first step, and "
         "then frees the reference's weights.");
}

}  // namespace neap::spec
