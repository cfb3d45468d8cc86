// A job: all settings of a configuration file, with verl's names where verl has one.
//
// `neap train` and `neap plan` share this type. bind() lists the keys for files, command-line
// overrides and docs/configuration.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/config.h"
#include "spec/model/checkpointing.h"
#include "spec/model/model_configs.h"
#include "spec/ranks/context_parallel.h"
#include "spec/types/data_config.h"
#include "spec/types/data_parallel.h"
#include "spec/types/dtype.h"
#include "spec/types/lora.h"
#include "spec/types/loss_kinds.h"
#include "spec/types/memory_config.h"
#include "spec/types/mesh.h"
#include "spec/types/model_files.h"
#include "spec/types/parallel_config.h"
#include "spec/types/reward_config.h"
#include "spec/types/rollout_config.h"
#include "spec/types/rollout_correction.h"
#include "spec/types/task.h"

namespace neap::spec {

/// Each optimizer reads some of these (spec/job/optimizer.h). Setting one that it does not read is an
/// error.
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
  double lr_warmup_steps_ratio = 0;  ///< fraction of all steps, used if lr_warmup_steps is 0
  std::string lr_schedule = "constant";
  double min_lr_ratio = 0;  ///< final learning rate of linear and cosine, as a fraction of lr
};

struct ModelConfig {
  /// Folder with config.json, and with weights unless they are initialised at random.
  std::string path;
  std::string tokenizer_path;  ///< folder with tokenizer.json; empty: the model's
  CheckpointMode activation_checkpointing = CheckpointMode::kAuto;
  bool enable_gradient_checkpointing = false;  ///< verl's switch for mode "full"
  /// Adapter to continue training; empty: a new one, if lora_rank says so.
  std::string lora_adapter_path;
  /// From the keys, or from the adapter's file.
  LoraShape lora{.rank = 0, .targets = {std::string(kAllLinear)}, .alpha = 16};

  /// Combines the two keys above.
  [[nodiscard]] CheckpointMode checkpoint_mode() const {
    return enable_gradient_checkpointing ? CheckpointMode::kFull : activation_checkpointing;
  }
};

struct ActorConfig {
  std::int64_t ppo_mini_batch_size = 0;  ///< 0: the whole batch
  std::int64_t ppo_micro_batch_size_per_gpu = 8;
  bool use_dynamic_bsz = true;  ///< ppo and grpo: packed micro-batches, bounded by tokens
  std::int64_t ppo_max_token_len_per_gpu = 16384;
  std::int64_t ppo_epochs = 1;
  PolicyLoss loss_mode = PolicyLoss::kVanilla;  ///< policy_loss.loss_mode
  // Also keys of policy_loss.
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
  /// For seq-mean-token-sum-norm; 0: the maximum response length.
  std::int64_t loss_scale_factor = 0;
  double grad_clip = 1.0;
  OptimizerConfig optim;
};

struct CriticConfig {
  ModelConfig model;
  bool init_head = false;                ///< critic.model.init_head
  std::int64_t ppo_mini_batch_size = 0;  ///< 0: as the actor's
  std::int64_t ppo_micro_batch_size_per_gpu = 8;
  std::int64_t forward_micro_batch_size_per_gpu = 0;  ///< for values; 0: as ppo_micro_batch_size
  std::int64_t ppo_max_token_len_per_gpu = 32768;
  std::int64_t forward_max_token_len_per_gpu = 0;  ///< for values; 0: as ppo_max_token_len_per_gpu
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
  bool precompute_ref_log_probs = false;  ///< for every row, before the first step
};

/// DAPO's dynamic sampling.
struct FilterGroupsConfig {
  bool enable = false;
  std::string metric = "score";          ///< score, seq_reward, seq_final_reward, acc
  std::int64_t max_num_gen_batches = 0;  ///< 0: no limit
};

struct AlgorithmConfig {
  std::string preset;  ///< "verl", "openrlhf" or "trl": use that system's defaults; empty: Neap's
  AdvantageEstimator adv_estimator = AdvantageEstimator::kGae;
  double gamma = 1.0, lam = 1.0;
  bool use_kl_in_reward = false;
  KlKind kl_penalty;
  std::string kl_ctrl_type = "fixed";
  double kl_coef = 0.001;
  std::int64_t horizon = 10000;
  double target_kl = 0.1;
  bool norm_adv_by_std_in_grpo = true;
  double norm_adv_eps = 1e-6;  ///< added to the standard deviation when advantages are normalised
  FilterGroupsConfig filter_groups;
  RolloutCorrectionConfig rollout_correction;
  // Whether responses that reach the maximum length are excluded from the loss.
  bool mask_truncated_completions = false;
  double stop_properly_penalty_coef = 1;
  double missing_eos_penalty = 0;
};

struct TrainerConfig {
  std::int64_t total_epochs = 1;
  std::int64_t total_training_steps = 0;  ///< 0: train for the number of epochs
  std::int64_t save_freq = 20;            ///< steps; -1: at the end only
  std::int64_t test_freq = 20;
  std::int64_t max_ckpt_to_keep = 2;
  bool save_lora_base = false;  ///< with LoRA: also store the base's weights in each checkpoint
  std::string best_metric;      ///< validation metric whose best checkpoint is kept; empty: none
  std::string best_mode = "max";
  /// Metric of validation that ends training at stop_value; empty: none.
  std::string stop_metric;
  double stop_value = 0;
  std::string stop_mode = "max";
  bool async_save = true;  ///< write a copy of the models while training continues, if it fits
  Bytes max_shard_size = 5_GiB;
  std::string default_local_dir;     ///< empty: output/TASK
  std::string resume_mode = "auto";  ///< auto, disable, or the folder of a checkpoint
  std::vector<std::string> logger = {"console", "jsonl", "tensorboard"};
  std::string project_name = "neap", experiment_name;  ///< for W&B and MLflow
  std::int64_t val_samples = 4;
  std::int64_t rollout_freq = 10;  ///< steps between logged training responses; -1: log none
  std::int64_t rollout_samples = 3;
  bool rollout_token_ids = false;
  Bytes rollout_max_size = 1_GiB;
  Bytes trace_max_size = 64_MiB;  ///< limit for memory.ntrace; 0: do not write it
  std::int64_t seed = 1;
  bool deterministic = false;
  std::string experience = "none";  ///< none, keep or read: the experience of ppo and grpo
  std::string experience_dir;       ///< for "read": the folder of the run that kept it
  bool balance_batch = true;        ///< assign packed rows to ranks by token count
  std::int64_t nnodes = 0, n_gpus_per_node = 0;  ///< 0: as the launcher started them
};

struct Job {
  Task task = Task::kPpo;
  DeviceConfig device;
  MemoryConfig memory;
  ParallelConfig parallel;
  ModelPlacement actor_placement;  ///< of actor_rollout_ref.actor: the main model
  ModelPlacement reference_placement, critic_placement, reward_placement;
  DataConfig data;
  /// Also the trained model of sft and dpo, and the base of the reward task.
  ModelConfig actor_model;
  ModelConfig reference_model;  ///< empty path: the actor's initial model
  ModelConfig reward_model;     ///< for ppo and grpo; empty path: none
  double reward_model_weight = 1;
  double center_rewards_coefficient = 0;  ///< for the reward task
  RewardConfig reward;                    ///< reward functions, used with or without a reward model
  ActorConfig actor;
  RolloutConfig rollout;
  CriticConfig critic;
  AlgorithmConfig algorithm;
  DpoConfig dpo;
  TrainerConfig trainer;
  std::int64_t nccl_timeout = 1800;                     ///< seconds
  std::int64_t reference_micro_batch_size_per_gpu = 0;  ///< 0: as the actor's log-probabilities
  std::int64_t reward_micro_batch_size_per_gpu = 0;     ///< 0: as the actor's log-probabilities
  // 0: as the actor's log-probabilities
  std::int64_t reference_max_token_len_per_gpu = 0, reward_max_token_len_per_gpu = 0;
  std::filesystem::path folder;     ///< folder of the configuration file; relative paths start here
  std::int64_t launched_ranks = 0;  ///< ranks that the launcher started; 0: planning without a run
  std::int64_t launched_node_ranks = 0;  ///< ranks per machine; 0: not known
  ModelConfigs configs;                  ///< the architectures that were read

  /// Keys that the user did not set and that load() adjusted, as "key.path=value".
  std::vector<std::string> adapted{};
  /// Messages about keys that are set but not used by this job.
  std::vector<std::string> warnings{};

  /// Binds every key to a field of this object, which must outlive the table and must not move.
  [[nodiscard]] ConfigTable bind();
  /// Reads the file (unless its path is empty), applies the overrides in order, then checks keys
  /// against each other. A job with open parallel sizes is not checked. Load it again with the
  /// sizes that a plan chose (plan/search/degree_search.h).
  [[nodiscard]] static Status load(const std::filesystem::path& file,
                                   const std::vector<std::string>& overrides, Job& job,
                                   OpenDegrees open = OpenDegrees::kNone);
  /// Reads the initial adapters, once the models' paths are known.
  [[nodiscard]] Status read_adapters(const ConfigTable& table);
  /// Checks rules between keys ("ppo_mini_batch_size 48 does not divide train_batch_size 64").
  [[nodiscard]] Status validate() const;
  [[nodiscard]] std::filesystem::path resolve(const std::string& path) const;
  /// trainer.default_local_dir, or output/TASK.
  [[nodiscard]] std::filesystem::path output_folder() const;
  /// The model that actor_rollout_ref.model describes.
  [[nodiscard]] ModelId main_model() const {
    return task == Task::kReward ? ModelId::kReward : ModelId::kActor;
  }
  /// The files of the initial weights of `model`, from a folder that the job names. `adapter`
  /// replaces the folder's own adapter. In the folder of a checkpoint or a run, it selects the
  /// model that `model` continues.
  [[nodiscard]] Result<ModelFiles> model_files(ModelId model, const std::string& path,
                                               const std::string& adapter = {}) const;

  // Resolved values of keys whose zero or empty value means "as another key".
  [[nodiscard]] bool trains_policy() const { return task == Task::kPpo || task == Task::kGrpo; }
  /// Whether the model trains or is evaluated on its own responses.
  [[nodiscard]] bool has_rollout() const { return trains_policy() || task == Task::kEval; }
  [[nodiscard]] bool has_critic() const { return task == Task::kPpo; }
  /// Whether the run trains from experience that another run kept. Then it neither generates nor
  /// scores.
  [[nodiscard]] bool reads_experience() const {
    return trains_policy() && trainer.experience == "read";
  }
  [[nodiscard]] bool keeps_experience() const {
    return trains_policy() && trainer.experience == "keep";
  }
  /// Whether this run generates and scores responses.
  [[nodiscard]] bool generates() const { return has_rollout() && !reads_experience(); }
  /// Whether rows are pairs of responses.
  [[nodiscard]] bool has_pairs() const { return task == Task::kReward || task == Task::kDpo; }
  /// ReMax's baseline: each prompt also gets a greedy response, which is scored.
  [[nodiscard]] bool has_greedy_baseline() const {
    return trains_policy() && algorithm.adv_estimator == AdvantageEstimator::kRemax;
  }
  [[nodiscard]] bool has_reward_model() const { return !reward_model.path.empty(); }
  /// Whether dynamic sampling compares rewards after subtracting the KL penalty.
  [[nodiscard]] bool filters_by_kl() const {
    return algorithm.filter_groups.enable && algorithm.use_kl_in_reward &&
           algorithm.filter_groups.metric == "seq_final_reward";
  }
  /// Whether the rollout's log-probabilities serve as the old ones.
  [[nodiscard]] bool bypasses_old_log_probs() const {
    return trains_policy() && algorithm.rollout_correction.bypass_mode;
  }
  /// Whether the old log-probabilities are the update's own: one update follows each rollout, and
  /// nothing else reads them.
  [[nodiscard]] bool old_log_probs_are_current() const;
  /// Whether a phase computes the old log-probabilities.
  [[nodiscard]] bool computes_old_log_probs() const {
    return trains_policy() && !bypasses_old_log_probs() && !old_log_probs_are_current();
  }
  /// Whether validation measures the divergence from the reference.
  [[nodiscard]] bool validates_divergence() const {
    return trains_policy() && uses_reference() && rollout.val_kwargs.do_sample &&
           !data.val_files.empty() && !bypasses_old_log_probs();
  }
  /// Whether the rollout keeps the log-probabilities of sampled tokens.
  [[nodiscard]] bool keeps_rollout_log_probs() const {
    return trains_policy() && (rollout.calculate_log_probs || algorithm.rollout_correction.any());
  }
  /// Whether the reference's log-probabilities are computed once, before the first step.
  [[nodiscard]] bool precomputes_reference() const {
    return task == Task::kDpo && dpo.precompute_ref_log_probs;
  }
  [[nodiscard]] bool uses_reference() const;
  /// Whether the reference is the actor's base with the adapter off, and not a model of its own.
  [[nodiscard]] bool reference_is_actor_base() const;
  /// The path of the reference model, by default the actor's.
  [[nodiscard]] const std::string& reference_path() const;
  /// The path of the critic's initial model, by default the reward model's, else the actor's.
  [[nodiscard]] const std::string& critic_path() const;
  /// Whether a scalar head of zeros is allowed: no model with a head was named, or the key says so.
  [[nodiscard]] bool starts_critic_head() const;
  /// Prompts per optimizer step.
  [[nodiscard]] std::int64_t actor_mini_batch() const;
  [[nodiscard]] std::int64_t critic_mini_batch() const;
  [[nodiscard]] std::int64_t sequences_per_row() const;  ///< rollout.n, or 2 for pairs
  [[nodiscard]] std::int64_t sequences_per_step() const;
  /// The number of processes, one device each.
  [[nodiscard]] std::int64_t ranks() const;
  /// Ranks per machine; 0: all.
  [[nodiscard]] std::int64_t node_ranks() const;
  /// The main model first, then the others that the job has.
  [[nodiscard]] std::vector<ModelId> models() const;
  /// The parallel keys of the model itself. `neap eval` ignores them.
  [[nodiscard]] ModelPlacement own_placement(ModelId model) const;
  /// The keys of [parallel], overridden by the model's own keys.
  [[nodiscard]] ModelPlacement placement(ModelId model) const;
  /// Whether all models have the same placement.
  [[nodiscard]] bool places_models_alike() const;
  /// Whether any model has pipeline stages.
  [[nodiscard]] bool has_stages() const;
  /// The arrangement of ranks for a model.
  [[nodiscard]] Mesh mesh(ModelId model) const;
  /// The mesh of the main model. Its data-parallel ranks share each batch.
  [[nodiscard]] Mesh mesh() const { return mesh(main_model()); }
  /// In the order of models().
  [[nodiscard]] std::vector<Mesh> model_meshes() const;
  /// Ranks in rollouts: mesh(), or without stages and with the rollout's tensor-parallel size.
  [[nodiscard]] Mesh generation_mesh() const;
  /// Whether rollouts shard the model differently than training does.
  [[nodiscard]] bool has_generation_placement() const {
    const Mesh there = generation_mesh(), here = mesh();
    return there.size(Axis::kTensor) != here.size(Axis::kTensor) ||
           there.size(Axis::kPipe) != here.size(Axis::kPipe);
  }
  /// Whether rollouts of the trained actor have a copy of its weights: rollout.colocation says so.
  [[nodiscard]] bool copies_rollout_weights() const;
  /// Offloading between phases, by memory.offload and rollout.colocation.
  [[nodiscard]] Residency residency() const;
  /// The context-parallel size of a model.
  [[nodiscard]] std::int64_t context_ranks(ModelId model) const {
    return mesh(model).size(Axis::kContext);
  }
  [[nodiscard]] std::int64_t context_ranks() const { return context_ranks(main_model()); }
  /// The context-parallel rank, and whether it uses ring attention.
  [[nodiscard]] ContextShard context_shard(ModelId model, std::int64_t rank = 0) const {
    const std::int64_t of = context_ranks(model);
    return {of, rank, of > 1 && placement(model).passes_keys()};
  }
  [[nodiscard]] ContextShard context_shard() const { return context_shard(main_model()); }
  /// The data-parallel size of a model: each step's batch has that many shares.
  [[nodiscard]] std::int64_t data_ranks(ModelId model) const {
    return mesh(model).size(Axis::kData);
  }
  [[nodiscard]] std::int64_t data_ranks() const { return data_ranks(main_model()); }
  /// Whether the model uses sequence parallelism (step/operations/rows.h).
  [[nodiscard]] bool divides_rows(ModelId model) const {
    return placement(model).sequence_parallel.value_or(false);
  }
  [[nodiscard]] DataParallel data_parallel(ModelId model) const {
    const Mesh arranged = mesh(model);
    return {arranged.size(Axis::kCopies), placement(model).zero_stage,
            arranged.size(Axis::kReplicas)};
  }
  [[nodiscard]] DataParallel data_parallel() const { return data_parallel(main_model()); }
  /// The rows and sequences of one step that a rank scores and trains with a model.
  [[nodiscard]] std::int64_t rows_per_rank(ModelId model) const;
  [[nodiscard]] std::int64_t sequences_per_rank(ModelId model) const;
  /// The prompts and sequences that one rank generates per step. Context-parallel ranks generate
  /// different prompts (spec/types/mesh.h); a tensor-parallel group shares its prompts.
  [[nodiscard]] std::int64_t generating_ranks() const {
    return generation_mesh().size(Axis::kCopies);
  }
  [[nodiscard]] std::int64_t prompts_per_rank() const;
  [[nodiscard]] std::int64_t responses_per_rank() const;
  /// The sequences that a rank decodes at once.
  [[nodiscard]] std::int64_t rollout_batch() const;
  /// At most the prompts of the sequences that are decoded at once.
  [[nodiscard]] PrefillShape prefill() const;
  [[nodiscard]] std::int64_t reference_micro_batch() const;
  [[nodiscard]] std::int64_t reward_micro_batch() const;
  [[nodiscard]] std::int64_t values_micro_batch() const;
  /// Whether sequences are packed and micro-batches are bounded by tokens.
  [[nodiscard]] bool packs() const {
    return has_rollout() ? actor.use_dynamic_bsz : data.use_dynamic_bsz;
  }
  /// The length that seq-mean-token-sum-norm divides by.
  [[nodiscard]] std::int64_t loss_scale_factor() const;
  [[nodiscard]] std::int64_t max_sequence_length() const;  ///< prompt + response
  /// Temperature of log-probabilities: that of the sampling distribution, or 1 for greedy decoding.
  [[nodiscard]] double log_prob_temperature() const {
    return has_rollout() && rollout.temperature > 0 ? rollout.temperature : 1;
  }
};

}  // namespace neap::spec
