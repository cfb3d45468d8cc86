// Every key of a configuration file, with its limits and its words for docs/configuration.md.
#include "spec/job_keys.h"

#include <optional>

#include "spec/checkpointing.h"
#include "spec/micro_batches.h"
#include "spec/optimizer.h"
#include "spec/peer_keys.h"

namespace neap::spec {
namespace {

void bind_device(ConfigTable& t, Job& job) {
  t.bind("device.kind", &job.device.kind,
         "`auto` takes the GPU if there is one, else the host device.")
      .one_of({"auto", "cuda", "host"});
  t.bind("device.memory", &job.device.memory,
         "Ceiling for the device memory of a rank; `0 B`: all that the device has.");
  t.bind("device.ordinal", &job.device.ordinal,
         "Index of the GPU. The ranks of a machine take this one and the next ones.")
      .at_least(0);
  t.bind(
       "device.dtype", &job.device.dtype,
       "Type of weights in forward and backward; `auto`: bfloat16 on a GPU, float32 on the host. "
       "With bfloat16 the optimizer keeps float32 masters unless `optim.master_dtype` says "
       "otherwise. float64 is for comparisons on the host device: everything that a step computes "
       "and keeps is float64.")
      .one_of({"auto", "float32", "bfloat16", "float64"});
  bind_enum(
      t, "memory.residency", &job.memory.residency, parse_residency,
      "`auto`: the plan decides what leaves the device between the phases that need it; `all`: "
      "everything stays.")
      .one_of(residency_names());
  bind_enum(t, "memory.update", &job.memory.update, parse_update_choice,
            "What is on the device at once while a model is trained: `joined`: weights, gradients, "
            "activations and optimizer states; `split`: forward and backward run without optimizer "
            "states, the update without activations; `streamed`: optimizer states "
            "rest on the host, and the update brings them part by part; `disk`: they rest on disk "
            "(`disk` "
            "of `memory.allow`); `auto`: the cheapest that fits. "
            "Losses and weights are the same bit by bit.")
      .one_of(update_choice_names());
  bind_enums(
      t, "memory.allow", &job.memory.allow, parse_measure,
      "What the plan may do so that the job fits, the fastest of it. `recompute`: compute "
      "activations again, where `activation_checkpointing` is `auto`; `move`: keep tags on the "
      "host while no phase needs them; `stream`: `streamed` updates; `stream_weights`: blocks of "
      "models rest on the host and come to the device while others compute, with their gradients "
      "where they train, and all together where the model generates; where that is not enough, "
      "embedding and head, too; of weights that ranks slice each rank's slice rests there, and "
      "where that is not enough that of their gradients; "
      "`disk`: optimizer states, and where that is not enough blocks or slices and their "
      "gradients, rest in "
      "files, where the host has no room for them (not by "
      "default); `micro_batch`: smaller micro-batches in training than "
      "configured; `bf16_states`: `state_dtype` bfloat16. The first five leave every bit of the "
      "results as it is. `micro_batch` adds the same numbers "
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
  t.bind("memory.disk_folder", &job.memory.disk_folder,
         "Folder for what rests on disk, of each rank; empty: the system's temporary folder. Files "
         "have "
         "no names: they vanish with the process.");
  t.bind(
      "memory.disk_bandwidth", &job.memory.disk_bandwidth,
      "For plans: bytes a second that the disk reads or writes, such as `5GB` (`neap bench disk` "
      "measures it); `0 B`: 2 GB.");
  t.bind("memory.alloc_conf", &job.memory.alloc_conf,
         "Settings of the transient pools' allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.");
}

void bind_critic(ConfigTable& t, Job& job) {
  const ConfigTable::Section ppo(t, of_tasks([](const Job& j) { return j.has_critic(); }));
  CriticConfig& c = job.critic;
  bind_model(t, "critic.model", c.model,
             "Folder of the model that the critic starts from; empty: the reward model's, else the "
             "actor's with a scalar head of zeros.",
             true);
  t.bind("critic.model.init_head", &c.init_head,
         "Starts the scalar head at zero if the folder of `critic.model.path` has none; false: "
         "that is an error.");
  t.bind("critic.ppo_mini_batch_size", &c.ppo_mini_batch_size,
         "Prompts of one optimizer step (times `rollout.n` sequences); 0: as the actor's.")
      .in("prompts")
      .at_least(0);
  t.bind("critic.ppo_micro_batch_size_per_gpu", &c.ppo_micro_batch_size_per_gpu,
         "Sequences of a padded micro-batch." + kAdapts)
      .in("sequences")
      .at_least(1)
      .only(where(kPacksPolicy, {false}));
  t.bind("critic.forward_micro_batch_size_per_gpu", &c.forward_micro_batch_size_per_gpu,
         "Sequences whose values are computed at once; 0: as `ppo_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0)
      .only(where(kPacksPolicy, {false}));
  t.bind("critic.ppo_max_token_len_per_gpu", &c.ppo_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the critic's training.")
      .in("tokens")
      .at_least(1)
      .only(where(kPacksPolicy, {true}));
  t.bind("critic.forward_max_token_len_per_gpu", &c.forward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch whose values are computed at once; 0: as "
         "`ppo_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0)
      .only(where(kPacksPolicy, {true}));
  t.bind("critic.ppo_epochs", &c.ppo_epochs, "Passes over a step's sequences.").at_least(1);
  t.bind("critic.cliprange_value", &c.cliprange_value,
         "New values are clipped to this distance from the old ones.")
      .at_least(0);
  bind_loss_aggregation(t, "critic.loss_agg_mode", &c.loss_agg_mode);
  t.bind("critic.grad_clip", &c.grad_clip, "Largest norm of the gradient; 0: no clipping.")
      .at_least(0);
  bind_placement(t, "critic", job.critic_placement, &job.parallel.automatic.critic_zero, job);
  bind_optimizer(t, "critic.optim", c.optim);
}

void bind_rewards(ConfigTable& t, Job& job) {
  std::optional<ConfigTable::Section> scored(std::in_place, t, of_responses());
  bind_model(t, "reward_model.model", job.reward_model,
             "Folder of the reward model; empty: none, and `[[reward.functions]]` alone score "
             "responses.",
             false);
  const ConfigCondition has_model = needs(
      "reward_model.model.path", "a folder", [&job] { return job.has_reward_model(); },
      "there is no reward model");
  t.bind("reward_model.weight", &job.reward_model_weight,
         "Weight of the reward model's score; those of `[[reward.functions]]` are added.")
      .only(has_model);
  t.bind("reward_model.micro_batch_size_per_gpu", &job.reward_micro_batch_size_per_gpu,
         "Sequences that are scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0)
      .only(has_model)
      .only(where(kPacksPolicy, {false}));
  t.bind("reward_model.forward_max_token_len_per_gpu", &job.reward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch that is scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0)
      .only(has_model)
      .only(where(kPacksPolicy, {true}));
  job.reward.bind(t);
  scored.reset();
  {
    const ConfigTable::Section trains(t, of_policies()), model(t, has_model);
    bind_placement(t, "reward_model", job.reward_placement, &job.parallel.automatic.reward_zero,
                   job);
  }
  t.bind("reward_model.center_rewards_coefficient", &job.center_rewards_coefficient,
         "Weight of the square of a pair's summed scores in the loss, which keeps scores around 0.")
      .at_least(0)
      .only(of_task(Task::kReward));
}

// What a run shows and writes besides checkpoints.
void bind_logs(ConfigTable& t, TrainerConfig& r) {
  t.bind("trainer.logger", &r.logger,
         "Where metrics go: `console`, `jsonl`, `tensorboard`, `wandb`, `mlflow`. The last two "
         "need their "
         "package in the `python3` on PATH.");
  t.bind("trainer.project_name", &r.project_name, "Project of W&B, experiment of MLflow.");
  t.bind("trainer.experiment_name", &r.experiment_name,
         "Name of the run there; empty: that of the output folder.");
  t.bind("trainer.val_samples", &r.val_samples,
         "Texts shown at each validation: half of them always for the same prompts, half for "
         "others each time. In sft, tokens that the model would not choose are in «».")
      .at_least(0);
  t.bind("trainer.rollout_freq", &r.rollout_freq,
         "The responses of the first and of every so many steps go to `rollouts.jsonl` "
         "with their scores, some to the console and the newest to the report; -1: none.")
      .in("steps")
      .at_least(-1)
      .only(of_policies());
  t.bind("trainer.rollout_samples", &r.rollout_samples,
         "How many of these responses the console shows, from the highest score to the lowest.")
      .at_least(0)
      .only(of_policies());
  t.bind("trainer.rollout_max_size", &r.rollout_max_size,
         "Limit of `rollouts.jsonl` and `rollouts.1.jsonl` together; the oldest responses are "
         "removed.");
  t.bind("trainer.trace_max_size", &r.trace_max_size,
         "Limit of `memory.ntrace` of a rank; later events are not recorded. 0: no trace. "
         "`phases.jsonl` always has each phase's peak.");
}

// Tasks whose steps take seconds; those of ppo and grpo take minutes.
bool steps_are_short(const Job& job) {
  return !job.has_rollout();
}

void bind_schedule(ConfigTable& t, Job& job) {
  const ConfigTable::Section training(t, of_training());
  TrainerConfig& r = job.trainer;
  t.bind("trainer.total_epochs", &r.total_epochs, "Passes over the training data.")
      .at_least(1)
      .only(where("trainer.total_training_steps", {0}));
  t.bind("trainer.total_training_steps", &r.total_training_steps,
         "Ends after this many steps; 0: by epochs.")
      .in("steps")
      .at_least(0);
  default_of_tasks(t.bind("trainer.save_freq", &r.save_freq,
                          "Checkpoint every so many steps and at the end; -1: only at the end.")
                       .in("steps")
                       .at_least(-1),
                   job, steps_are_short, 200);
  default_of_tasks(t.bind("trainer.test_freq", &r.test_freq,
                          "Validation every so many steps, before the first and after the last; "
                          "-1: only these two.")
                       .in("steps")
                       .at_least(-1)
                       .only({.key = "data.val_files",
                              .holds = [&job] { return !job.data.val_files.empty(); },
                              .words = "not empty"}),
                   job, steps_are_short, 200);
  t.bind("trainer.max_ckpt_to_keep", &r.max_ckpt_to_keep, "Number of checkpoints to keep; 0: all.")
      .in("checkpoints")
      .at_least(0);
  t.bind("trainer.best_metric", &r.best_metric,
         "Metric of validation, for example `val/score/mean`, whose best checkpoint is also kept; "
         "the link `best` points to it.");
  t.bind("trainer.best_mode", &r.best_mode, "Whether the highest or the lowest value is the best.")
      .one_of({"max", "min"})
      .only(needs(
          "trainer.best_metric", "a metric", [&r] { return !r.best_metric.empty(); },
          "no best checkpoint is kept"));
  t.bind("trainer.stop_metric", &r.stop_metric,
         "Metric of validation that ends the training when it reaches `trainer.stop_value`.");
  const ConfigCondition stops = needs(
      "trainer.stop_metric", "a metric", [&r] { return !r.stop_metric.empty(); },
      "nothing ends the training before its last step");
  t.bind("trainer.stop_value", &r.stop_value, "Value of that metric at which the training ends.")
      .only(stops);
  t.bind("trainer.stop_mode", &r.stop_mode,
         "`max`: the metric reaches the value from below; `min`: from above.")
      .one_of({"max", "min"})
      .only(stops);
}

void bind_trainer(ConfigTable& t, Job& job) {
  bind_schedule(t, job);
  TrainerConfig& r = job.trainer;
  t.bind("trainer.save_lora_base", &r.save_lora_base,
         "With LoRA, checkpoints hold the base's weights, too; false: the adapter, the path of its "
         "base, and the optimizer.")
      .only({.key = "actor_rollout_ref.model.lora_rank",
             .holds =
                 [&job] {
                   return job.actor_model.lora.rank > 0 ||
                          (job.has_critic() && job.critic.model.lora.rank > 0);
                 },
             .words = "above 0, or critic.model.lora_rank is",
             .otherwise = "checkpoints hold whole models"});
  t.bind("trainer.max_shard_size", &r.max_shard_size,
         "Weights over this size are saved in several files; at least 1 MB.");
  t.bind("trainer.default_local_dir", &r.default_local_dir,
         "Folder for checkpoints, metrics and the trace; empty: `output/TASK`, as `output/sft`.");
  t.bind("trainer.resume_mode", &r.resume_mode,
         "`auto` resumes from the newest checkpoint if there is one; `disable` starts from scratch "
         "and refuses a folder with a run; a path resumes from that checkpoint.");
  bind_logs(t, r);
  t.bind("trainer.seed", &r.seed, "Seed of all random numbers.").at_least(0);
  t.bind("trainer.deterministic", &r.deterministic,
         "Makes two runs on a GPU equal bit by bit, at the cost in docs/training.md. Runs on the "
         "host always are.");
  t.bind(
      "trainer.balance_batch", &r.balance_batch,
      "Deals the rows of a mini-batch to ranks so that all have about as many tokens, and as many "
      "rows; false: row i is rank i mod N's. Counts where sequences are packed "
      "(`use_dynamic_bsz`). See docs/parallel.md.");
  t.bind("trainer.nnodes", &r.nnodes,
         "Machines of the job; 0: from the launcher, one in a plan. See docs/parallel.md.")
      .at_least(0)
      .at_most(1 << 16);
  t.bind("trainer.n_gpus_per_node", &r.n_gpus_per_node,
         "Ranks on each machine, one per GPU (or share of the CPU); 0: from the launcher, one in a "
         "plan.")
      .at_least(0)
      .at_most(1 << 10);
}

}  // namespace

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
  bind_enum(
      t, at + ".activation_checkpointing", &m.activation_checkpointing, parse_checkpoint_mode,
      "What each block keeps for its backward pass. `none`: nothing is recomputed; `selective`: "
      "the outputs of norms, rotations and activations are recomputed; `full`: everything but "
      "the block's input is; `auto`: the plan chooses by tensor and block the fastest that "
      "fits. The results are the same.")
      .one_of(checkpoint_mode_names());
  t.bind(at + ".enable_gradient_checkpointing", &m.enable_gradient_checkpointing,
         "verl's name for `activation_checkpointing = \"full\"`.");
  t.bind(at + ".lora_rank", &m.lora.rank,
         "Rank of LoRA adapters; 0 trains every weight. With adapters, gradients and optimizer "
         "states are only those of the adapter.")
      .at_least(0)
      .at_most(4096);
  const ConfigCondition has_adapter = needs(
      at + ".lora_rank", "above 0", [&m] { return m.lora.rank > 0; }, "every weight is trained");
  t.bind(at + ".lora_alpha", &m.lora.alpha, "LoRA's scale: updates are scaled by alpha / rank.")
      .at_least(0)
      .only(has_adapter);
  t.bind(at + ".target_modules", &m.lora.targets,
         "Linear layers that get an adapter, by their last name (`q_proj`), or `all-linear`.")
      .only(has_adapter);
  t.bind(at + ".lora_adapter_path", &m.lora_adapter_path,
         "Folder of a LoRA adapter (PEFT) to continue; rank, alpha and layers are the adapter's. "
         "Empty: a new adapter.");
}

// A kind of optimizer lists the keys that it reads and not every kind does.
void require_optimizers(ConfigTable& t, const std::string& at) {
  const std::vector<std::string> kinds = optimizer_names();
  std::map<std::string, std::vector<Json>> readers;
  for (const std::string& kind : kinds)
    for (const std::string& key : optimizer_keys(*parse_optimizer(kind)))
      readers[key].emplace_back(kind);
  for (auto& [key, values] : readers) {
    if (values.size() == kinds.size()) continue;
    t.at(at + "." + key)
        .only({.key = at + ".optimizer", .values = values, .unread = Unread::kMistake});
  }
}

void bind_optimizer(ConfigTable& t, const std::string& at, OptimizerConfig& o) {
  t.bind(at + ".optimizer", &o.kind, "docs/training.md compares the optimizers.")
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
  bind_enum(t, at + ".state_dtype", &o.state_dtype, parse_dtype,
            "Type of the optimizer's moments. bfloat16 is written with stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  bind_enum(
      t, at + ".gradient_dtype", &o.gradient_dtype, parse_dtype,
      "Type in which gradients of micro-batches are accumulated. bfloat16 needs bfloat16 weights.")
      .one_of({"float32", "bfloat16"});
  bind_enum(t, at + ".master_dtype", &o.master_dtype, parse_dtype,
            "Type of the weights that are updated. float32: bfloat16 weights have a float32 copy. "
            "bfloat16: no copy; updates use stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  t.bind(at + ".lr_warmup_steps", &o.lr_warmup_steps, "Linear warm-up from zero.")
      .in("optimizer steps")
      .at_least(0);
  t.bind(at + ".lr_warmup_steps_ratio", &o.lr_warmup_steps_ratio,
         "Share of all optimizer steps that warm up, rounded up.")
      .at_least(0)
      .at_most(1)
      .only(where(at + ".lr_warmup_steps", {0}));
  t.bind(at + ".lr_scheduler_type", &o.lr_schedule, "Learning rate after the warm-up.")
      .one_of({"constant", "linear", "cosine"});
  t.bind(at + ".min_lr_ratio", &o.min_lr_ratio,
         "Final rate of `linear` and `cosine`, as a share of `lr`.")
      .at_least(0)
      .at_most(1)
      .only(needs(at + ".lr_scheduler_type", {"linear", "cosine"}));
  require_optimizers(t, at);
}

void default_of_tasks(ConfigTable::Key& key, const Job& job, bool (*fits)(const Job& job),
                      Json value) {
  std::string names;
  for (const Json& task : of_tasks(fits).values)
    names += (names.empty() ? "" : ", ") + task.get<std::string>();
  key.default_where(
      std::move(names), [&job, fits] { return fits(job); }, std::move(value));
}

ConfigTable Job::bind() {
  ConfigTable t;
  t.explain_unknown(explain_peer_key);
  bind_enum(t, "task", &task, parse_task,
            "What the job trains. `eval` trains nothing: `neap eval` runs it, and `neap plan` can "
            "plan it.")
      .one_of(task_names());
  bind_device(t, *this);
  bind_parallel(t, *this);
  bind_data(t, *this);
  bind_model(t, "actor_rollout_ref.model", actor_model,
             "Folder of the actor (`config.json`, weights if it is trained already); the only "
             "model of sft; what the reward model starts from in reward.",
             true);
  bind_actor(t, *this);
  bind_rollout(t, *this);
  t.bind("actor_rollout_ref.nccl_timeout", &nccl_timeout,
         "How long a rank waits for the others, from when one last showed that it works, as "
         "each step of decoding does; longer than writing a checkpoint takes.")
      .in("seconds")
      .at_least(1);
  bind_critic(t, *this);
  bind_rewards(t, *this);
  bind_algorithm(t, *this);
  bind_dpo(t, dpo);
  bind_trainer(t, *this);
  return t;
}

}  // namespace neap::spec
