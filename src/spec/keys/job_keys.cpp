// Job::bind(): every key of a configuration file, with limits and help for docs/configuration.md.
// This file has the device, memory, critic and rewards.
#include "spec/keys/job_keys.h"
#include "spec/keys/size_checks.h"
#include "spec/keys/token_budgets.h"

#include <optional>

#include "spec/keys/micro_batches.h"
#include "spec/keys/peer_keys.h"
#include "spec/keys/renamed_keys.h"

namespace neap::spec {
namespace {

void bind_device(ConfigTable& t, Job& job) {
  t.bind("device.kind", &job.device.kind, "`auto`: the GPU if there is one, else the CPU.")
      .one_of({"auto", "cuda", "cpu"});
  t.bind("device.memory", &job.device.memory,
         "Limit of the device memory of a rank; `0 B`: what is free, on a GPU less 272 MiB for "
         "kernels "
         "that load later.");
  t.bind("device.ordinal", &job.device.ordinal,
         "Index of the GPU. The ranks of a machine take this one and the next ones.")
      .at_least(0);
  t.bind("device.dtype", &job.device.dtype,
         "Type of weights in forward and backward; `auto`: bfloat16 on a GPU, float32 on the CPU. "
         "bfloat16 has master weights of `optim.master_dtype`. `float64` is for comparisons on the "
         "CPU.")
      .one_of({"auto", "float32", "bfloat16", "float64"});
  t.bind("device.linear_dtype", &job.device.linear_dtype,
         "Operands of layers' matrix products in training and scoring. `auto`: "
         "`device.dtype`. [`fp8`](../training.md#fp8) needs bfloat16, and on a GPU compute "
         "capability 8.9. Matrices whose sizes on a rank are not multiples of 16 stay in bfloat16.")
      .one_of({"auto", "fp8"});
  t.bind("device.kernels", &job.device.kernels,
         "`neap`: Neap's CUDA kernels for gated MLPs, rotary embeddings, logits, norms, embedding "
         "gradients and AdamW. They need compute capability 8.0 and NVRTC, which comes with torch. "
         "On Hopper, large products are by the fastest of cuBLASLt's algorithms. `libtorch`: "
         "libtorch's; results differ by rounding. `auto`: Neap's if they run.")
      .one_of({"auto", "neap", "libtorch"});
  bind_enum(t, "memory.offload", &job.memory.offload, parse_residency,
            "`auto`: the plan offloads tags between the phases that need them; `none`: everything "
            "stays on the device.")
      .one_of(residency_names());
  bind_enum(t, "memory.optimizer_offload", &job.memory.optimizer_offload, parse_update_choice,
            "Where optimizer states are. `none`: on the device; `phase_split`: on the device, but "
            "not during forward and backward; `cpu`: in host memory, loaded part by part; `nvme`: "
            "the same on disk; `auto`: the fastest that fits. Results are bitwise identical.")
      .one_of(update_choice_names());
  bind_enums(t, "memory.allow", &job.memory.allow, parse_measure,
             "Techniques that the plan may use so that the job fits, listed below.")
      .one_of(measure_names());
  t.bind("memory.overlap", &job.memory.overlap,
         "Copies to and from the host overlap with computation. Results are bitwise identical.");
  t.bind("memory.host_budget", &job.memory.host_budget,
         "Host memory for offloaded tensors; `0 B`: what the machine has free.");
  t.bind("memory.nvme_path", &job.memory.nvme_path,
         "Folder for tensors that are offloaded to disk; empty: the system's temporary folder. "
         "The files have no names and vanish with the process.");
  t.bind("memory.nvme_bandwidth", &job.memory.nvme_bandwidth,
         "For plans: bytes per second that the disk reads or writes, such as `5GB` (`neap bench "
         "--filter disk` measures it); `0 B`: 2 GB.");
  t.bind("memory.alloc_conf", &job.memory.alloc_conf,
         "Settings of the temporaries' allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.");
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
      .at_least(0)
      .at_most(kMostRows);
  t.bind("critic.ppo_micro_batch_size_per_gpu", &c.ppo_micro_batch_size_per_gpu,
         "Sequences of a padded micro-batch." + kAdapts)
      .in("sequences")
      .at_least(1)
      .at_most(kMostSequences)
      .only(where(kPacksPolicy, {false}));
  t.bind("critic.forward_micro_batch_size_per_gpu", &c.forward_micro_batch_size_per_gpu,
         "Sequences whose values are computed at once; 0: as `ppo_micro_batch_size_per_gpu`.")
      .in("sequences")
      .at_least(0)
      .at_most(kMostSequences)
      .only(where(kPacksPolicy, {false}));
  t.bind("critic.ppo_max_token_len_per_gpu", &c.ppo_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the critic's training." + kHoldsRow)
      .in("tokens")
      .at_least(1)
      .at_most(kMostMicroTokens)
      .only(where(kPacksPolicy, {true}));
  t.bind("critic.forward_max_token_len_per_gpu", &c.forward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch whose values are computed at once; 0: as "
         "`ppo_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0)
      .at_most(kMostMicroTokens)
      .only(where(kPacksPolicy, {true}));
  t.bind("critic.ppo_epochs", &c.ppo_epochs, "Passes over a step's sequences.")
      .at_least(1)
      .at_most(kMostEpochs);
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
      .at_most(kMostSequences)
      .only(has_model)
      .only(where(kPacksPolicy, {false}));
  t.bind("reward_model.forward_max_token_len_per_gpu", &job.reward_max_token_len_per_gpu,
         "Tokens of a packed micro-batch that is scored at once; 0: as "
         "`actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0)
      .at_most(kMostMicroTokens)
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

}  // namespace

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
  t.explain_unknown([](std::string_view path, bool exact) {
    std::string text = explain_renamed_key(path);
    return text.empty() ? explain_peer_key(path, exact) : text;
  });
  bind_enum(t, "task", &task, parse_task,
            "The training task. `eval` trains nothing: `neap eval` runs it, and `neap plan` can "
            "plan it.")
      .one_of(task_names());
  bind_device(t, *this);
  bind_parallel(t, *this);
  bind_data(t, *this);
  bind_model(
      t, "actor_rollout_ref.model", actor_model,
      "Folder of the actor: `config.json`, and weights unless it starts from random ones. In sft "
      "the only model; in reward the initial model.",
      true);
  bind_actor(t, *this);
  bind_rollout(t, *this);
  t.bind(
       "actor_rollout_ref.nccl_timeout", &nccl_timeout,
       "How long a rank waits without a sign of progress from the others (a decoding step is one). "
       "It must exceed the time to write a checkpoint.")
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
