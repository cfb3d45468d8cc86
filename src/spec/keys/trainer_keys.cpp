// Keys of trainer: schedule, checkpoints, logs, ranks.
#include <limits>

#include "spec/keys/job_keys.h"

namespace neap::spec {
namespace {

// Keys of logs and other outputs except checkpoints.
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
         "Steps between writing responses with scores to `rollouts.jsonl` (and in the first step), "
         "some to the console and the newest to the report; -1: none.")
      .in("steps")
      .at_least(-1)
      .only(of_policies());
  t.bind("trainer.rollout_samples", &r.rollout_samples,
         "How many of these responses the console shows, from the highest score to the lowest.")
      .at_least(0)
      .only(of_policies());
  t.bind("trainer.rollout_token_ids", &r.rollout_token_ids,
         "`rollouts.jsonl` also has the token ids: `prompt_ids` and `response_ids`, with the end "
         "token.")
      .only(of_policies());
  t.bind("trainer.rollout_max_size", &r.rollout_max_size,
         "Limit of `rollouts.jsonl` and `rollouts.1.jsonl` together; the oldest responses are "
         "removed.");
  t.bind("trainer.trace_max_size", &r.trace_max_size,
         "Limit of `memory.ntrace` of a rank; later events are not recorded. 0: no trace. "
         "`phases.jsonl` always has each phase's peak.");
}

// Steps of these tasks take seconds; those of ppo and grpo take minutes.
bool steps_are_short(const Job& job) {
  return !job.has_rollout();
}

void bind_experience(ConfigTable& t, TrainerConfig& r) {
  t.bind("trainer.experience", &r.experience,
         "`keep` writes what the updates of each step read to `experience/` in the output folder. "
         "`read` trains from it, without generation and scoring. See docs/training.md.")
      .one_of({"none", "keep", "read"})
      .only(of_policies());
  t.bind("trainer.experience_dir", &r.experience_dir,
         "Output folder of the run that kept the experience.")
      .only(needs("trainer.experience", {"read"}, "the run generates"));
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
                          "Steps between checkpoints; also one at the end. -1: only at the end.")
                       .in("steps")
                       .at_least(-1),
                   job, steps_are_short, 200);
  default_of_tasks(
      t.bind("trainer.test_freq", &r.test_freq,
             "Steps between validations; also before the first and after the last step. "
             "-1: only these two.")
          .in("steps")
          .at_least(-1)
          .only({.key = "data.val_files",
                 .holds = [&job] { return !job.data.val_files.empty(); },
                 .words = "not empty"}),
      job, steps_are_short, 200);
  t.bind("trainer.async_save", &r.async_save,
         "One rank copies checkpoints to host memory, if it has room, and writes them while "
         "training goes "
         "on; false: training waits until they are written.");
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

}  // namespace

void bind_trainer(ConfigTable& t, Job& job) {
  bind_schedule(t, job);
  TrainerConfig& r = job.trainer;
  t.bind("trainer.save_lora_base", &r.save_lora_base,
         "With LoRA, checkpoints also hold the base's weights; false: the adapter, the path of its "
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
  bind_experience(t, r);
  t.bind("trainer.seed", &r.seed, "Seed of all random numbers.")
      .at_least(0)
      .at_most(static_cast<double>(std::numeric_limits<std::int64_t>::max()));
  t.bind("trainer.deterministic", &r.deterministic,
         "Makes two runs on a GPU bitwise identical, at the cost in docs/training.md. Runs on "
         "the CPU always are.");
  t.bind("trainer.balance_batch", &r.balance_batch,
         "Balances the rows of a mini-batch over ranks by their tokens; false: round robin. "
         "It needs packed sequences (`use_dynamic_bsz`). See docs/parallelism.md.");
  t.bind("trainer.nnodes", &r.nnodes,
         "Machines of the job; 0: from the launcher, one in a plan. See docs/several-gpus.md.")
      .at_least(0)
      .at_most(1 << 16);
  t.bind("trainer.n_gpus_per_node", &r.n_gpus_per_node,
         "Ranks on each machine, one per GPU (or share of the CPU); 0: from the launcher, one in a "
         "plan.")
      .at_least(0)
      .at_most(1 << 10);
}

}  // namespace neap::spec
