// The common interface of all tasks' trainers. A loop calls train_step, validate and save.
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "bridge/runtime.h"
#include "parallel/batch_sharder.h"
#include "parallel/groups.h"
#include "parallel/run_collectively.h"
#include "report/rollout_log.h"
#include "reward/reward_set.h"
#include "rlhf/data/job_data.h"
#include "rlhf/data/text_encoder.h"
#include "spec/job/job.h"
#include "spec/recipe/recipe.h"
#include "train/model_worker.h"
#include "train/saved_files.h"
#include "train/sequences.h"
#include "weights/open_folders.h"

namespace neap::rlhf {

/// With verl's names: "actor/ppo_kl".
using Metrics = std::map<std::string, double>;

/// Everything that a trainer works with. It must outlive the trainer.
struct Context : TextContext {
  bridge::Runtime& runtime;
  /// The groups of each model.
  const parallel::JobGroups& model_groups;
  const JobData& data;
  reward::RewardSet& rewards;
  /// Training steps of the whole run. The number of optimizer steps is a multiple of it.
  std::int64_t total_steps = 0;
  weights::OpenFolders folders{};
  /// Shows the phases of a step; null: no display.
  Progress* progress = nullptr;
  /// The main model's groups, which share batches. `ranks` are all ranks.
  const parallel::Groups& groups = model_groups.main();
  parallel::Communicator& ranks = groups.world();
  /// With updates divided as the plan says.
  spec::Recipe recipe = spec::describe(job, runtime.plan().modes);

  /// Assigns the rows of a batch to the ranks that score and train them.
  [[nodiscard]] parallel::BatchSharder sharder() const {
    return parallel::BatchSharder(data_ranks());
  }
  /// The ranks that share each batch. Tensor-parallel and context-parallel ranks have the same rows
  /// and the same numbers.
  [[nodiscard]] parallel::Communicator& data_ranks() const { return groups.data(); }
  /// The tokens of each sequence that this rank computes with a model.
  [[nodiscard]] spec::ContextShard context_shard(spec::ModelId model) const {
    return job.context_shard(model, model_groups.of(model).context().rank());
  }
  /// Only the last pipeline stage has a phase's results. Copies its tensor to the host memory of
  /// every stage. Every stage calls it, between phases.
  [[nodiscard]] at::Tensor from_last_stage(spec::ModelId model, const at::Tensor& t) const;
  /// This rank's share of `rows` rows.
  [[nodiscard]] std::vector<std::size_t> share_of(std::size_t rows) const;
  /// The rows that a rank with rows `mine` scores. Without rows it scores the first row and
  /// discards the result, because ranks with ZeRO shards must compute together.
  [[nodiscard]] static std::vector<std::size_t> to_score(std::vector<std::size_t> mine) {
    if (mine.empty()) mine.push_back(0);
    return mine;
  }
  /// The worker settings of a model of the recipe.
  [[nodiscard]] train::WorkerSpec worker_spec(spec::ModelId model) const;
  /// Settings for saving models.
  [[nodiscard]] weights::SaveOptions save_options() const;
};

struct Validation {
  Metrics metrics;
  std::vector<report::Rollout> samples;
};

/// A step cannot be computed because of something outside the run, such as a failing reward program
/// or disk. It is thrown on every rank, before persistent state has changed. The run then saves the
/// steps before.
class StepFailure : public parallel::CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/// A signal stopped a step, on every rank, before persistent state has changed.
class StepInterrupted : public StepFailure {
 public:
  StepInterrupted() : StepFailure(Status(ErrorCode::kCancelled, "Interrupted"), true) {}
};

/// parallel::run_collectively within a step or validation: a failure of `work` becomes a
/// StepFailure.
void run_in_step(parallel::Communicator& ranks, const std::function<void()>& work);

/// With several ranks, every rank calls the same functions. A rank works on its share of a batch,
/// together with the ranks that share the model. Metrics are those of the whole batch on every
/// rank.
class Trainer {
 public:
  virtual ~Trainer() = default;
  /// Computes what is needed once, before load() or restore().
  virtual void precompute() {}
  /// Loads weights as the configuration says, and zeroes optimizer states.
  virtual void load() = 0;
  [[nodiscard]] virtual std::int64_t steps_per_epoch() const = 0;
  /// Runs step `step`, counted from 0.
  virtual Metrics train_step(std::int64_t step) = 0;
  /// All responses of the last step, if `shows_rollouts`; on the first rank.
  [[nodiscard]] virtual std::vector<report::Rollout> take_rollouts() { return {}; }
  [[nodiscard]] virtual bool can_validate() const = 0;
  /// Validates after `step` steps.
  virtual Validation validate(std::int64_t step) = 0;
  /// Saves everything that later steps depend on, except the step number. The caller completes
  /// `files`, possibly after the next step.
  virtual void save(const std::filesystem::path& folder, train::SavedFiles& files) = 0;
  virtual void restore(const std::filesystem::path& folder) = 0;
};

/// Creates the trainer of `context.job.task`.
[[nodiscard]] std::unique_ptr<Trainer> make_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_sft_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_reward_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_dpo_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_ppo_trainer(Context& context);  ///< also for grpo
/// For both, from kept experience.
[[nodiscard]] std::unique_ptr<Trainer> make_kept_trainer(Context& context);

// ---- shared by the trainers ----

/// Whether to show texts of step `step`, counted from 1: the first step and every
/// trainer.rollout_freq-th.
[[nodiscard]] inline bool shows_rollouts(const spec::TrainerConfig& config, std::int64_t step) {
  return config.rollout_freq > 0 && (step == 1 || step % config.rollout_freq == 0);
}

/// Runs `body` in a phase, waits for its communication, and closes the phase.
void run_phase(Context& context, spec::PhaseId phase, const std::function<void()>& body);

/// Adds the seconds of its lifetime to `timing_s/<name>`.
class Stopwatch {
 public:
  Stopwatch(Metrics& metrics, const char* name);
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch();

 private:
  Metrics& metrics_;
  const char* name_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Adds prefix/mean, /max and /min over the masked elements, or over all.
void summarize(Metrics& metrics, const std::string& prefix, const at::Tensor& x,
               const at::Tensor& mask = {});

/// The shape of the job's batches.
[[nodiscard]] train::SequenceShape sequence_shape(const Context& context);

}  // namespace neap::rlhf
