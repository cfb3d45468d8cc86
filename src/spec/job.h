// A job: everything a configuration file can say, with verl's names where verl has one.
//
// `neap train` and `neap plan` use one Job. bind() lists the keys of the file, the overrides and
// docs/configuration.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/config.h"
#include "spec/checkpointing.h"
#include "spec/context_parallel.h"
#include "spec/data_config.h"
#include "spec/data_parallel.h"
#include "spec/dtype.h"
#include "spec/lora.h"
#include "spec/loss_kinds.h"
#include "spec/memory_config.h"
#include "spec/mesh.h"
#include "spec/model_files.h"
#include "spec/parallel_config.h"
#include "spec/reward_config.h"
#include "spec/rollout_correction.h"
#include "spec/task.h"

namespace neap::spec {

/// Each kind reads some of these (spec/optimizer.h); setting another is an error.
struct OptimizerConfig {
  std::string kind = "adamw";
  double lr = 1e-6;
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double beta2_decay = -0.8, clip_threshold = 1.0, eps1 = 1e-30, eps2 = 1e-3;
  bool relative_step = true;
  double momentum = 0;
  bool nesterov = false;
  Dtype state_dtype = Dtype::kFloat32, gradient_dtype = Dtype::kFloat32;
  Dtype master_dtype = Dtype::kFloat32;
  std::int64_t lr_warmup_steps = 0;
  double lr_warmup_steps_ratio = 0;  ///< of all steps, where lr_warmup_steps is 0
  std::string lr_schedule = "constant";
  double min_lr_ratio = 0;  ///< where linear and cosine end, of lr
};

struct ModelConfig {
  std::string path;            ///< folder with config.json; weights too, or random initialization
  std::string tokenizer_path;  ///< folder with tokenizer.json; empty: the model's
  CheckpointMode activation_checkpointing = CheckpointMode::kAuto;
  bool enable_gradient_checkpointing = false;  ///< verl's name for "full"
  std::string lora_adapter_path;  ///< adapter that training goes on with; empty: a new one, if any
  /// By the keys, or as the adapter's file says.
  LoraShape lora{.rank = 0, .targets = {std::string(kAllLinear)}, .alpha = 16};

  /// What the two keys above say together.
  [[nodiscard]] CheckpointMode checkpoint_mode() const {
    return enable_gradient_checkpointing ? CheckpointMode::kFull : activation_checkpointing;
  }
};

struct ActorConfig {
  std::int64_t ppo_mini_batch_size = 0;  ///< 0: the whole batch
  std::int64_t ppo_micro_batch_size_per_gpu = 8;
  bool use_dynamic_bsz = true;  ///< of ppo and grpo: micro-batches by tokens, packed
  std::int64_t ppo_max_token_len_per_gpu = 16384;
  std::int64_t ppo_epochs = 1;
  PolicyLoss loss_mode = PolicyLoss::kVanilla;  ///< policy_loss.loss_mode
  // Of policy_loss, too.
  double dro_beta = 0;
  double tau_pos = 1.0, tau_neg = 1.05;
  double clip_cov_ratio = 2e-4, clip_cov_lb = 1.0, clip_cov_ub = 5.0;
  double kl_cov_ratio = 2e-4, ppo_kl_coef = 0.1;
  double clip_ratio = 0.2, clip_ratio_low = 0.2, clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;  ///< 0: no dual clip
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  KlKind kl_loss_type{KlEstimator::kK3};
  LossAggregation loss_agg_mode = LossAggregation::kTokenMean;
  std::int64_t loss_scale_factor = 0;  ///< of seq-mean-token-sum-norm; 0: the longest response
  double grad_clip = 1.0;
  OptimizerConfig optim;
};

/// The distribution that tokens are drawn from.
struct TokenSampling {
  double temperature = 1.0;
  double top_p = 1.0;
  std::int64_t top_k = -1;
};

/// How held-out prompts are answered. TokenSampling only counts where it samples.
struct ValidationSampling : TokenSampling {
  std::int64_t n = 1;  ///< responses for each prompt
  bool do_sample = false;
};

/// Of passes that prefill prompts.
struct PrefillShape {
  std::int64_t prompts = 1;  ///< that one takes together
  std::int64_t tokens = 0;   ///< of each; longer prompts are alone and take several passes
};
/// Whole prompts of up to `longest` tokens, at most `prompts`, while they have at most `budget`
/// tokens together; where one has more, that many tokens of one prompt.
[[nodiscard]] constexpr PrefillShape prefill_shape(std::int64_t prompts, std::int64_t longest,
                                                   std::int64_t budget) {
  if (longest > budget) return {1, budget};
  return {std::min(prompts, budget / std::max<std::int64_t>(longest, 1)), longest};
}

struct RolloutConfig : TokenSampling {
  std::int64_t n = 1;                           ///< responses for each prompt
  std::int64_t batch_size = 256;                ///< sequences decoded together; 0: the whole batch
  std::int64_t tensor_model_parallel_size = 0;  ///< of the model that generates; 0: as in training
  std::int64_t max_num_batched_tokens = 8192;   ///< of prompts that are prefilled together
  bool enable_chunked_prefill = true;
  bool calculate_log_probs = false;  ///< of what is sampled, as it is sampled
  std::int64_t log_prob_micro_batch_size_per_gpu = 8;
  std::int64_t log_prob_max_token_len_per_gpu = 0;  ///< 0: as the actor's training
  double min_p = 0;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> stop;
  bool sample_lengths = false;  ///< responses end at random lengths, for measurements
  ValidationSampling val_kwargs;
};

struct CriticConfig {
  ModelConfig model;
  bool init_head = false;                ///< critic.model.init_head
  std::int64_t ppo_mini_batch_size = 0;  ///< 0: as the actor's
  std::int64_t ppo_micro_batch_size_per_gpu = 8;
  std::int64_t forward_micro_batch_size_per_gpu = 0;  ///< values; 0: as ppo_micro_batch_size
  std::int64_t ppo_max_token_len_per_gpu = 32768;
  std::int64_t forward_max_token_len_per_gpu = 0;  ///< values; 0: as ppo_max_token_len_per_gpu
  std::int64_t ppo_epochs = 1;
  double cliprange_value = 0.5;
  LossAggregation loss_agg_mode = LossAggregation::kTokenMean;
  double grad_clip = 1.0;
  OptimizerConfig optim{.lr = 1e-5};
};

struct DpoConfig {
  PreferenceLoss loss_type = PreferenceLoss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0;
  bool precompute_ref_log_probs = false;  ///< before the first step, of every row
};

/// DAPO's dynamic sampling.
struct FilterGroupsConfig {
  bool enable = false;
  std::string metric = "score";          ///< score, seq_reward, seq_final_reward, acc
  std::int64_t max_num_gen_batches = 0;  ///< 0: no limit
};

struct AlgorithmConfig {
  std::string preset;  ///< "verl", "openrlhf", "trl": whose defaults apply; empty: Neap's
  AdvantageEstimator adv_estimator = AdvantageEstimator::kGae;
  double gamma = 1.0, lam = 1.0;
  bool use_kl_in_reward = false;
  KlKind kl_penalty;
  std::string kl_ctrl_type = "fixed";
  double kl_coef = 0.001;
  std::int64_t horizon = 10000;
  double target_kl = 0.1;
  bool norm_adv_by_std_in_grpo = true;
  double norm_adv_eps = 1e-6;  ///< added to that standard deviation
  FilterGroupsConfig filter_groups;
  RolloutCorrectionConfig rollout_correction;
  // Responses that were cut at the longest length.
  bool mask_truncated_completions = false;
  double stop_properly_penalty_coef = 1;
  double missing_eos_penalty = 0;
};

struct TrainerConfig {
  std::int64_t total_epochs = 1;
  std::int64_t total_training_steps = 0;  ///< 0: by epochs
  std::int64_t save_freq = 20;            ///< steps; -1: at the end only
  std::int64_t test_freq = 20;
  std::int64_t max_ckpt_to_keep = 2;
  bool save_lora_base = false;  ///< with LoRA the base's weights are in each checkpoint
  std::string best_metric;      ///< of validation; its best checkpoint is kept. Empty: none is
  std::string best_mode = "max";
  std::string
      stop_metric;  ///< of validation; training ends where it reaches stop_value. Empty: never
  double stop_value = 0;
  std::string stop_mode = "max";
  Bytes max_shard_size = 5_GiB;
  std::string default_local_dir;     ///< empty: output/TASK
  std::string resume_mode = "auto";  ///< auto, disable, or a checkpoint's folder
  std::vector<std::string> logger = {"console", "jsonl", "tensorboard"};
  std::string project_name = "neap", experiment_name;  ///< of W&B and MLflow
  std::int64_t val_samples = 4;
  std::int64_t rollout_freq = 10;  ///< steps; -1: texts of training are not shown
  std::int64_t rollout_samples = 3;
  bool rollout_token_ids = false;
  Bytes rollout_max_size = 1_GiB;
  Bytes trace_max_size = 64_MiB;  ///< of memory.ntrace; 0: none is written
  std::int64_t seed = 1;
  bool deterministic = false;
  bool balance_batch = true;                     ///< packed rows are dealt to ranks by their tokens
  std::int64_t nnodes = 0, n_gpus_per_node = 0;  ///< 0: as the launcher started them
};

struct Job {
  Task task = Task::kPpo;
  DeviceConfig device;
  MemoryConfig memory;
  ParallelConfig parallel;
  ModelPlacement actor_placement;  ///< of actor_rollout_ref.actor: the main model's
  ModelPlacement reference_placement, critic_placement, reward_placement;
  DataConfig data;
  ModelConfig actor_model;      ///< the only trained model of sft and dpo; the reward model's base
  ModelConfig reference_model;  ///< path empty: the actor's start
  ModelConfig reward_model;     ///< of ppo and grpo; path empty: none
  double reward_model_weight = 1;
  double center_rewards_coefficient = 0;  ///< of the reward task
  RewardConfig reward;  ///< functions that score responses, besides the model or instead
  ActorConfig actor;
  RolloutConfig rollout;
  CriticConfig critic;
  AlgorithmConfig algorithm;
  DpoConfig dpo;
  TrainerConfig trainer;
  std::int64_t nccl_timeout = 1800;                     ///< seconds
  std::int64_t reference_micro_batch_size_per_gpu = 0;  ///< 0: as the actor's log-probabilities
  std::int64_t reward_micro_batch_size_per_gpu = 0;     ///< 0: as the actor's log-probabilities
  // 0: as the actor's log-probabilities.
  std::int64_t reference_max_token_len_per_gpu = 0, reward_max_token_len_per_gpu = 0;
  std::filesystem::path folder;     ///< of the configuration file; relative paths in it start here
  std::int64_t launched_ranks = 0;  ///< what the launcher started; 0: nothing runs, a plan is made
  std::int64_t launched_node_ranks = 0;  ///< of these on a machine; 0: not known

  /// "key.path=value" of keys that nobody set and that load() fitted to the others.
  std::vector<std::string> adapted{};
  /// Sentences about keys that are set and that this job does not read.
  std::vector<std::string> warnings{};

  /// Binds every key to this object's fields; the object outlives the table and does not move.
  [[nodiscard]] ConfigTable bind();
  /// Reads the file, unless it is empty, then the overrides in order, then checks keys against each
  /// other. A job with open degrees is neither checked nor fitted to its ranks: load it again with those that a
  /// plan has chosen (plan/degree_search.h).
  [[nodiscard]] static Status load(const std::filesystem::path& file,
                                   const std::vector<std::string>& overrides, Job& job,
                                   OpenDegrees open = OpenDegrees::kNone);
  /// The adapters that the models start with, once their paths are known.
  [[nodiscard]] Status read_adapters(const ConfigTable& table);
  /// Cross-key rules ("ppo_mini_batch_size 48 does not divide train_batch_size 64").
  [[nodiscard]] Status validate() const;
  [[nodiscard]] std::filesystem::path resolve(const std::string& path) const;
  /// trainer.default_local_dir, or output/TASK.
  [[nodiscard]] std::filesystem::path output_folder() const;
  /// The model of actor_rollout_ref.model.
  [[nodiscard]] ModelId main_model() const {
    return task == Task::kReward ? ModelId::kReward : ModelId::kActor;
  }
  /// Where the job's `model` starts: the model in a folder that the job names, with another adapter than
  /// the folder's own if one is given. Of a checkpoint or a run's output: the model that `model` continues.
  [[nodiscard]] Result<ModelFiles> model_files(ModelId model, const std::string& path,
                                               const std::string& adapter = {}) const;

  // What the keys whose zero or empty value means "as another key" come to.
  [[nodiscard]] bool trains_policy() const { return task == Task::kPpo || task == Task::kGrpo; }
  /// Responses are generated and scored.
  [[nodiscard]] bool has_rollout() const { return trains_policy() || task == Task::kEval; }
  [[nodiscard]] bool has_critic() const { return task == Task::kPpo; }
  /// Rows are pairs of responses.
  [[nodiscard]] bool has_pairs() const { return task == Task::kReward || task == Task::kDpo; }
  /// A response to each prompt is also decoded greedily and scored: ReMax's baseline.
  [[nodiscard]] bool has_greedy_baseline() const {
    return trains_policy() && algorithm.adv_estimator == AdvantageEstimator::kRemax;
  }
  [[nodiscard]] bool has_reward_model() const { return !reward_model.path.empty(); }
  /// Dynamic sampling compares rewards less the KL.
  [[nodiscard]] bool filters_by_kl() const {
    return algorithm.filter_groups.enable && algorithm.use_kl_in_reward &&
           algorithm.filter_groups.metric == "seq_final_reward";
  }
  /// The rollout's log-probabilities are the old ones.
  [[nodiscard]] bool bypasses_old_log_probs() const {
    return trains_policy() && algorithm.rollout_correction.bypass_mode;
  }
  /// The rollout keeps the log-probabilities of what it samples.
  [[nodiscard]] bool keeps_rollout_log_probs() const {
    return trains_policy() && (rollout.calculate_log_probs || algorithm.rollout_correction.any());
  }
  /// The reference's log-probabilities are computed once, before the first step.
  [[nodiscard]] bool precomputes_reference() const {
    return task == Task::kDpo && dpo.precompute_ref_log_probs;
  }
  [[nodiscard]] bool uses_reference() const;
  /// The reference is no model of its own: the actor's frozen base, the adapter off.
  [[nodiscard]] bool reference_is_actor_base() const;
  /// The reference's model: its own path, else the actor's.
  [[nodiscard]] const std::string& reference_path() const;
  /// The critic's start: its own path, else the reward model's, else the actor's.
  [[nodiscard]] const std::string& critic_path() const;
  /// It may get a scalar head of zeros: no model with one was named, or the key says so.
  [[nodiscard]] bool starts_critic_head() const;
  /// Prompts of one optimizer step.
  [[nodiscard]] std::int64_t actor_mini_batch() const;
  [[nodiscard]] std::int64_t critic_mini_batch() const;
  [[nodiscard]] std::int64_t sequences_per_row() const;  ///< rollout.n, or 2 of a pair
  [[nodiscard]] std::int64_t sequences_per_step() const;
  /// Processes, one device each.
  [[nodiscard]] std::int64_t ranks() const;
  /// Of them on a machine; 0: all.
  [[nodiscard]] std::int64_t node_ranks() const;
  /// The main model, then the others that the job has.
  [[nodiscard]] std::vector<ModelId> models() const;
  /// What the keys of a model itself say; where evaluated, nothing.
  [[nodiscard]] ModelPlacement own_placement(ModelId model) const;
  /// The job's [parallel] with what the model's own keys say.
  [[nodiscard]] ModelPlacement placement(ModelId model) const;
  /// Of models().
  [[nodiscard]] bool places_models_alike() const;
  /// Of some model.
  [[nodiscard]] bool has_stages() const;
  /// How ranks are arranged for a model.
  [[nodiscard]] Mesh mesh(ModelId model) const;
  /// Of the main model: its ranks along the axis "data" share each batch.
  [[nodiscard]] Mesh mesh() const { return mesh(main_model()); }
  /// Of models().
  [[nodiscard]] std::vector<Mesh> model_meshes() const;
  /// How ranks are arranged where they generate: mesh(), or without stages, and as many along the axis tensor as the
  /// rollout has.
  [[nodiscard]] Mesh generation_mesh() const;
  /// The model that generates is divided otherwise there.
  [[nodiscard]] bool has_generation_placement() const {
    const Mesh there = generation_mesh(), here = mesh();
    return there.size(Axis::kTensor) != here.size(Axis::kTensor) ||
           there.size(Axis::kPipe) != here.size(Axis::kPipe);
  }
  /// Ranks that divide each sequence for a model.
  [[nodiscard]] std::int64_t context_ranks(ModelId model) const {
    return mesh(model).size(Axis::kContext);
  }
  [[nodiscard]] std::int64_t context_ranks() const { return context_ranks(main_model()); }
  /// Which of them one is, and whether keys pass round them.
  [[nodiscard]] ContextShard context_shard(ModelId model, std::int64_t rank = 0) const {
    const std::int64_t of = context_ranks(model);
    return {of, rank, of > 1 && placement(model).passes_keys()};
  }
  [[nodiscard]] ContextShard context_shard() const { return context_shard(main_model()); }
  /// Parts of each step's batch that a model takes: ranks along the axis "data".
  [[nodiscard]] std::int64_t data_ranks(ModelId model) const {
    return mesh(model).size(Axis::kData);
  }
  [[nodiscard]] std::int64_t data_ranks() const { return data_ranks(main_model()); }
  /// Whether ranks that divide a model divide the rows of its hidden states (step/rows.h).
  [[nodiscard]] bool divides_rows(ModelId model) const {
    return placement(model).sequence_parallel.value_or(false);
  }
  [[nodiscard]] DataParallel data_parallel(ModelId model) const {
    const Mesh arranged = mesh(model);
    return {arranged.size(Axis::kCopies), placement(model).zero_stage,
            arranged.size(Axis::kReplicas)};
  }
  [[nodiscard]] DataParallel data_parallel() const { return data_parallel(main_model()); }
  /// What one rank scores and trains of a step with a model: its part's share of the rows and of the sequences.
  [[nodiscard]] std::int64_t rows_per_rank(ModelId model) const;
  [[nodiscard]] std::int64_t sequences_per_rank(ModelId model) const;
  /// What one rank generates of a step: ranks that divide sequences have prompts of their own (spec/mesh.h), and
  /// those that divide the model there have theirs together.
  [[nodiscard]] std::int64_t generating_ranks() const {
    return generation_mesh().size(Axis::kCopies);
  }
  [[nodiscard]] std::int64_t prompts_per_rank() const;
  [[nodiscard]] std::int64_t responses_per_rank() const;
  /// Of these responses those that it decodes together.
  [[nodiscard]] std::int64_t rollout_batch() const;
  /// Together at most the prompts of the sequences that are decoded together.
  [[nodiscard]] PrefillShape prefill() const;
  [[nodiscard]] std::int64_t reference_micro_batch() const;
  [[nodiscard]] std::int64_t reward_micro_batch() const;
  [[nodiscard]] std::int64_t values_micro_batch() const;
  /// Sequences are packed, and tokens bound micro-batches.
  [[nodiscard]] bool packs() const {
    return has_rollout() ? actor.use_dynamic_bsz : data.use_dynamic_bsz;
  }
  /// Length that seq-mean-token-sum-norm divides by.
  [[nodiscard]] std::int64_t loss_scale_factor() const;
  [[nodiscard]] std::int64_t max_sequence_length() const;  ///< prompt + response
  /// Log-probabilities are those of the sampling distribution; greedy decoding takes 1.
  [[nodiscard]] double log_prob_temperature() const {
    return has_rollout() && rollout.temperature > 0 ? rollout.temperature : 1;
  }
};

}  // namespace neap::spec
