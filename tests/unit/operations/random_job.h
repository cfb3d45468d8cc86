// Random jobs: architectures, sizes, adapters and checkpointing that no configuration file has.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "plan/counting/tags.h"
#include "spec/job/job.h"
#include "step/model/paged_cache.h"
#include "step/operations/fp8.h"
#include "step/operations/shape.h"

namespace neap::testing {

using plan::JobModels;
using plan::ModelRole;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + between(0, static_cast<std::int64_t>(list.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

/// One of the values that have these names.
template <class T>
T any_of(Dice& dice, const std::vector<std::string>& names, Result<T> (*parse)(std::string_view)) {
  return *parse(names[static_cast<std::size_t>(dice.between(0, std::ssize(names) - 1))]);
}

inline spec::Architecture random_architecture(Dice& dice) {
  spec::Architecture a;
  a.vocab_size = dice.between(50, 900);
  a.head_dim = dice.one_of({8, 16, 20, 32});
  a.num_key_value_heads = dice.between(1, 3);
  a.num_attention_heads = a.num_key_value_heads * dice.between(1, 3);
  a.hidden_size = a.embedding_dim = dice.between(3, 12) * 8;
  a.intermediate_size = dice.between(4, 20) * 8;
  a.num_hidden_layers = dice.between(1, 4);
  a.max_position_embeddings = 4096;
  a.gated = dice.chance(60);
  a.activation = dice.one_of({spec::Activation::kSilu, spec::Activation::kGelu,
                              spec::Activation::kGeluTanh, spec::Activation::kRelu});
  a.norm =
      dice.one_of({spec::NormKind::kLayerNorm, spec::NormKind::kRms, spec::NormKind::kRmsOffset});
  if (dice.chance(60)) {
    a.rotary.dimensions = dice.chance(50) ? a.head_dim : a.head_dim / 2;
  } else if (dice.chance(70)) {
    a.learned_positions = true;
    a.position_offset = dice.one_of({0, 2});
  } else {
    a.alibi = true;
  }
  a.embedding_norm = dice.chance(15);
  a.fused_gate = a.gated && dice.chance(25);
  if (dice.chance(30)) {
    a.qkv = dice.one_of({spec::QkvLayout::kInTurn, spec::QkvLayout::kPerHead});
    if (a.qkv == spec::QkvLayout::kPerHead) a.num_key_value_heads = a.num_attention_heads;
    a.input_major = dice.chance(50);
    a.attention_bias = true;
  }
  // No model has both a fused projection and norms of heads.
  a.query_key_norm = a.qkv == spec::QkvLayout::kSeparate && dice.chance(35);
  a.norm_across_heads = a.query_key_norm && dice.chance(50);
  a.attention_bias = a.attention_bias || dice.chance(50);
  a.attention_output_bias = dice.chance(50);
  a.mlp_bias = dice.chance(50);
  a.parallel_residual = dice.chance(20);
  if (!a.parallel_residual && dice.chance(30)) {
    a.placement = dice.one_of({spec::NormPlacement{.before = true, .after = true},
                               spec::NormPlacement{.before = false, .after = true},
                               spec::NormPlacement{.before = false, .over = true}});
    a.final_norm = !a.placement.over;
    if (!a.final_norm && dice.chance(50)) a.embedding_dim = a.hidden_size / 2;
  }
  if (dice.chance(20)) a.embedding_scale = 3.25;
  if (dice.chance(20)) a.logit_softcap = 30;
  if (dice.chance(15)) a.logits_divisor = 4;
  if (a.placement.before && !a.placement.after && dice.chance(15)) a.residual_scale = 0.25;
  if (dice.chance(15)) {
    for (std::int64_t i = 0; i < a.num_hidden_layers; ++i)
      a.unrotated_layers.push_back(dice.chance(50));
  }
  if (dice.chance(15)) a.attention_softcap = 50;
  if (dice.chance(25)) {
    a.sliding_window = dice.between(1, 60);
    for (std::int64_t i = 0; i < a.num_hidden_layers; ++i)
      a.sliding_layers.push_back(dice.chance(60));
    if (a.rotary.dimensions > 0 && dice.chance(40)) {
      a.sliding_rotary = a.rotary;
      a.sliding_rotary.theta = 500;
    }
  }
  a.tie_word_embeddings = dice.chance(50);
  return a;
}

inline spec::BlockRetention random_retention(Dice& dice) {
  spec::BlockRetention r;
  for (std::size_t t = 0; t < spec::kSavedTensors; ++t) {
    if (dice.chance(50)) r.set(static_cast<spec::SavedTensor>(t), spec::Retention::kRecompute);
  }
  return r;
}

/// One of the modes, or anything for each tensor and block.
inline spec::Checkpointing random_checkpointing(Dice& dice, const spec::Architecture& a) {
  using spec::CheckpointMode;
  spec::Checkpointing c = spec::checkpointing(
      dice.one_of({CheckpointMode::kNone, CheckpointMode::kSelective, CheckpointMode::kFull}), a);
  if (dice.chance(50)) return c;
  for (spec::BlockRetention& block : c.blocks) block = random_retention(dice);
  return c;
}

inline spec::OptimizerConfig random_optimizer(Dice& dice, step::Dtype weights) {
  spec::OptimizerConfig c;
  const std::vector<std::string> names = spec::optimizer_names();
  c.kind = names[static_cast<std::size_t>(dice.between(0, std::ssize(names) - 1))];
  c.weight_decay = dice.chance(50) ? 0.1 : 0;
  c.relative_step = dice.chance(50);
  c.momentum = dice.chance(50) ? 0.9 : 0;
  c.nesterov = c.momentum > 0 && dice.chance(50);
  if (weights == step::Dtype::kFloat64) return c;
  if (dice.chance(40)) c.state_dtype = spec::Dtype::kBfloat16;
  if (weights == step::Dtype::kFloat32) return c;
  if (dice.chance(40)) c.gradient_dtype = spec::Dtype::kBfloat16;
  if (dice.chance(40)) c.master_dtype = spec::Dtype::kBfloat16;
  return c;
}

inline ModelRole random_role(Dice& dice, spec::ModelId id, spec::Head head, bool trained,
                             step::Dtype dtype) {
  ModelRole role;
  role.id = id;
  role.shape = random_architecture(dice);
  role.head = head;
  role.trained = trained;
  role.checkpointing = random_checkpointing(dice, role.shape);
  if (trained && dice.chance(30)) role.lora = {dice.between(1, 6), {"all-linear"}};
  if (trained) role.optimizer = random_optimizer(dice, dtype);
  return role;
}

/// The job's key of a model's adapter. Some adapters have another rank in each layer, or skip it.
inline void set_adapter(std::uint64_t seed, ModelRole& role, spec::LoraShape& key) {
  Dice dice(seed + 86028157);  // draws of its own, so that the others stay as they were
  if (role.lora.rank > 0 && dice.chance(40)) {
    std::map<std::string, spec::LoraModule, std::less<>> modules;
    for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora)) {
      for (const spec::Parameter& p : unit.parameters) {
        const std::size_t end = p.name.rfind(".lora_A");
        if (end == std::string::npos || !dice.chance(60)) continue;
        modules[p.name.substr(spec::kPeftPrefix.size(), end - spec::kPeftPrefix.size())] = {
            dice.between(1, role.lora.rank), role.lora.alpha};
      }
    }
    role.lora.modules = std::move(modules);
  }
  key = role.lora;
}

inline void random_correction(Dice& dice, spec::RolloutCorrectionConfig& correction) {
  if (dice.chance(30)) correction.rollout_is = dice.chance(50) ? "token" : "sequence";
  if (!dice.chance(30)) return;
  correction.bypass_mode = true;
  correction.loss_type = dice.chance(50) ? "reinforce" : "ppo_clip";
  correction.rollout_is_batch_normalize = dice.chance(50);
  if (dice.chance(30)) return;
  correction.rollout_rs = dice.chance(50) ? "token_k1,seq_max_k2" : "seq_mean_k3,seq_sum_k1";
  correction.rollout_rs_threshold = "0.5_2.0";
}

struct RandomJob {
  spec::Job job;
  JobModels models;
  step::Dtype dtype;
};
/// Packs or not; budgets from the longest row on.
inline void random_packing(Dice& dice, spec::Job& job) {
  const std::int64_t longest = job.max_sequence_length() * (job.has_pairs() ? 2 : 1);
  job.actor.use_dynamic_bsz = job.data.use_dynamic_bsz = dice.chance(40);
  for (std::int64_t* budget :
       {&job.data.max_token_len_per_gpu, &job.actor.ppo_max_token_len_per_gpu,
        &job.critic.ppo_max_token_len_per_gpu, &job.rollout.log_prob_max_token_len_per_gpu})
    *budget = longest + dice.between(0, 3 * longest);
}

// The actor's start, frozen.
inline plan::ModelRole reference_of(plan::ModelRole role) {
  role.id = spec::ModelId::kReference;
  role.trained = false;
  role.lora = {};
  return role;
}

inline void random_rollout(Dice& dice, spec::RolloutConfig& rollout) {
  rollout.temperature = dice.one_of({0.0, 0.7, 1.0});
  rollout.top_p = dice.chance(30) ? 0.9 : 1.0;
  rollout.top_k = dice.chance(30) ? 5 : -1;
  rollout.min_p = dice.chance(20) ? 0.05 : 0;
  rollout.repetition_penalty = dice.chance(20) ? 1.2 : 1;
  rollout.presence_penalty = dice.chance(20) ? 0.5 : 0;
  rollout.log_prob_micro_batch_size_per_gpu = dice.between(1, 4);
}

inline void random_keys(Dice& dice, std::uint64_t seed, spec::Job& job) {
  job.task = any_of(dice, spec::task_names(), spec::parse_task);
  job.data.max_prompt_length = dice.between(1, 40);
  job.data.max_response_length = dice.between(2, dice.chance(4) ? 900 : 60);
  const std::int64_t micro = dice.between(1, 4);
  job.data.micro_batch_size_per_gpu = micro;
  job.data.train_batch_size = micro * dice.between(1, 3);
  job.rollout.n = job.task == spec::Task::kGrpo ? 2 : 1;
  random_rollout(dice, job.rollout);
  job.actor.ppo_mini_batch_size = job.critic.ppo_mini_batch_size = job.data.train_batch_size;
  job.actor.ppo_micro_batch_size_per_gpu = job.critic.ppo_micro_batch_size_per_gpu = micro;
  job.actor.ppo_epochs = dice.between(1, 2);
  job.actor.entropy_coeff = dice.chance(40) ? 0.01 : 0;
  job.actor.use_kl_loss = dice.chance(50);
  job.actor.kl_loss_type = any_of(dice, spec::kl_names(), spec::parse_kl);
  for (spec::LossAggregation* mode : {&job.actor.loss_agg_mode, &job.critic.loss_agg_mode})
    *mode = any_of(dice, spec::loss_aggregation_names(), spec::parse_loss_aggregation);
  if (job.task == spec::Task::kGrpo) {
    job.actor.loss_mode = any_of(dice, spec::policy_loss_names(), spec::parse_policy_loss);
    job.algorithm.adv_estimator =
        dice.one_of({spec::AdvantageEstimator::kGrpo, spec::AdvantageEstimator::kRemax});
  }
  job.algorithm.filter_groups.enable = job.task == spec::Task::kGrpo && dice.chance(30);
  job.rollout.calculate_log_probs = dice.chance(30);
  random_correction(dice, job.algorithm.rollout_correction);
  random_packing(dice, job);
  job.actor.clip_ratio_c = dice.chance(30) ? 0 : 3;
  job.center_rewards_coefficient = dice.chance(50) ? 0.01 : 0;
  if (dice.chance(50)) job.data.val_files = {"held_out"};
  job.rollout.val_kwargs.do_sample = dice.chance(50);
  job.rollout.val_kwargs.top_p = dice.chance(30) ? 0.8 : 1.0;
  job.rollout.val_kwargs.top_k = dice.chance(30) ? 3 : -1;
  job.rollout.val_kwargs.n = job.rollout.val_kwargs.do_sample ? dice.between(1, 4) : 1;
  // Draws of their own, so that the others stay as they were.
  if (Dice prefill(seed + 7919); prefill.chance(40))
    job.rollout.max_num_batched_tokens = prefill.between(1, 3 * job.data.max_prompt_length);
  if (Dice rows(seed + 15485863); rows.chance(50))
    job.rollout.batch_size = rows.between(1, job.responses_per_rank());
  if (Dice pages(seed + 32452843); pages.chance(50)) {
    const std::int64_t of_row = step::pages_of(job.max_sequence_length());
    job.rollout.max_total_tokens =
        step::kPageTokens * pages.between(of_row, of_row * job.rollout_batch());
  }
  job.dpo.loss_type = any_of(dice, spec::preference_loss_names(), spec::parse_preference_loss);
}

/// The models of `out.job`, and its keys of adapters.
inline void random_models(Dice& dice, std::uint64_t seed, RandomJob& out) {
  spec::Job& job = out.job;
  if (job.task == spec::Task::kReward) {
    out.models.reward =
        random_role(dice, spec::ModelId::kReward, spec::Head::kScalar, true, out.dtype);
    set_adapter(seed, *out.models.reward, job.actor_model.lora);
    return;
  }
  const bool evaluated = job.task == spec::Task::kEval;
  out.models.actor =
      random_role(dice, spec::ModelId::kActor, spec::Head::kLanguageModel, !evaluated, out.dtype);
  // Ranks that Neap's kernels take.
  if (Dice wide(seed + 32452843); out.models.actor->lora.rank > 0 && wide.chance(50))
    out.models.actor->lora.rank = 8 * wide.between(1, 2);
  set_adapter(seed, *out.models.actor, job.actor_model.lora);
  if (job.task == spec::Task::kSft) return;
  if (Dice once(seed + 104729); job.task == spec::Task::kDpo)
    job.dpo.precompute_ref_log_probs = once.chance(50);
  if ((out.models.actor->lora.rank == 0 || job.precomputes_reference()) && !evaluated)
    out.models.reference = reference_of(*out.models.actor);
  if (job.task == spec::Task::kDpo) return;
  out.models.actor->generates = true;
  out.models.reward =
      random_role(dice, spec::ModelId::kReward, spec::Head::kScalar, false, out.dtype);
  if (job.task != spec::Task::kPpo) return;
  out.models.critic =
      random_role(dice, spec::ModelId::kCritic, spec::Head::kScalar, true, out.dtype);
  set_adapter(seed + 1, *out.models.critic, job.critic.model.lora);
}

// Widths that a GPU multiplies in fp8.
inline void widen_for_fp8(spec::Architecture& a) {
  const auto whole = [](std::int64_t n) { return step::fp8_padded(n); };
  const bool narrow_table = a.embedding_dim != a.hidden_size;
  a.hidden_size = whole(a.hidden_size);
  a.embedding_dim = narrow_table ? a.hidden_size / 2 : a.hidden_size;
  a.intermediate_size = whole(a.intermediate_size);
  const std::int64_t head = whole(a.head_dim);
  for (spec::Rotary* rotary : {&a.rotary, &a.sliding_rotary})
    rotary->dimensions = rotary->dimensions * head / a.head_dim;
  a.head_dim = head;
}

/// Some jobs of bfloat16.
inline void random_linear_dtype(std::uint64_t seed, RandomJob& out, bool on_host) {
  if (out.dtype != step::Dtype::kBfloat16 || !Dice(seed + 49979687).chance(35)) return;
  out.job.device.linear_dtype = "fp8";
  // Others have matrices that stay in bfloat16.
  if (on_host && Dice(seed + 86028121).chance(50)) return;
  for (std::optional<ModelRole>* role :
       {&out.models.actor, &out.models.reference, &out.models.critic, &out.models.reward})
    if (*role) widen_for_fp8((*role)->shape);
}

/// GPUs read pages only with Neap's kernel, as the plan checks.
inline void leave_out_pages(RandomJob& out) {
  const std::optional<ModelRole>& actor = out.models.actor;
  if (actor && !step::no_pages_reason(actor->shape, /*cuda=*/true, out.dtype, {.on = true}).empty())
    out.job.rollout.max_total_tokens = 0;
}

/// `on_host`: also jobs of float64, which GPUs do not take.
inline RandomJob random_job(std::uint64_t seed, bool on_host) {
  Dice dice(seed);
  RandomJob out;
  out.dtype = dice.one_of({step::Dtype::kFloat32, step::Dtype::kBfloat16});
  // Drawn apart: the other jobs are the same on GPUs.
  if (Dice(~seed).chance(15) && on_host) out.dtype = step::Dtype::kFloat64;
  random_keys(dice, seed, out.job);
  random_models(dice, seed, out);
  random_linear_dtype(seed, out, on_host);
  if (!on_host) leave_out_pages(out);
  return out;
}

}  // namespace neap::testing
