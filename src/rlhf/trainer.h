// What the trainers of all tasks have in common: a loop calls train_step, validate, save.
//
// Threads   one at a time.   Failure   Error.
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
#include "rlhf/job_data.h"
#include "rlhf/text_encoder.h"
#include "spec/job.h"
#include "spec/recipe.h"
#include "train/model_worker.h"
#include "train/sequences.h"

namespace neap::rlhf {

/// Names as in verl: "actor/ppo_kl".
using Metrics = std::map<std::string, double>;

/// Everything that a trainer works with; outlives it.
struct Context : TextContext {
  bridge::Runtime& runtime;
  /// Those of each model.
  const parallel::JobGroups& model_groups;
  const JobData& data;
  reward::RewardSet& rewards;
  /// Optimizer steps of the whole run are a multiple of this many training steps.
  std::int64_t total_steps = 0;
  /// Shows the phases of a step; null: nothing does.
  Progress* progress = nullptr;
  /// Those of the main model, among which batches are dealt: `ranks` are all of them.
  const parallel::Groups& groups = model_groups.main();
  parallel::Communicator& ranks = groups.world();
  /// As the plan divides its updates.
  spec::Recipe recipe = spec::describe(job, runtime.plan().modes);

  /// Deals the rows of a batch to those that score and train them.
  [[nodiscard]] parallel::BatchSharder sharder() const {
    return parallel::BatchSharder(data_ranks());
  }
  /// Those that share each batch. Ranks that divide the model or sequences have the same rows and the same numbers.
  [[nodiscard]] parallel::Communicator& data_ranks() const { return groups.data(); }
  /// Which tokens of each sequence this rank computes with a model.
  [[nodiscard]] spec::ContextShard context_shard(spec::ModelId model) const {
    return job.context_shard(model, model_groups.of(model).context().rank());
  }
  /// Only the last stage of a model has the results of a phase: its tensor in host memory, on every stage.
  /// Between phases; every stage calls it.
  [[nodiscard]] at::Tensor from_last_stage(spec::ModelId model, const at::Tensor& t) const;
  /// This rank's share of `rows` rows.
  [[nodiscard]] std::vector<std::size_t> share_of(std::size_t rows) const;
  /// What a rank whose rows are `mine` scores: without any the first row, whose results nobody reads, because ranks
  /// that have slices of weights compute together.
  [[nodiscard]] static std::vector<std::size_t> to_score(std::vector<std::size_t> mine) {
    if (mine.empty()) mine.push_back(0);
    return mine;
  }
  /// A model of the recipe.
  [[nodiscard]] train::WorkerSpec worker_spec(spec::ModelId model) const;
  /// How models are saved.
  [[nodiscard]] weights::SaveOptions save_options() const;
};

struct Validation {
  Metrics metrics;
  std::vector<report::Rollout> samples;
};

/// A step cannot be computed for a reason outside of the run, as a reward program or a disk that
/// fails. Thrown on every rank before anything that outlives the step has changed: the run saves the
/// steps before.
class StepFailure : public parallel::CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/// A step was stopped by a signal, on every rank, before anything that outlives it has changed.
class StepInterrupted : public StepFailure {
 public:
  StepInterrupted() : StepFailure(Status(ErrorCode::kCancelled, "Interrupted"), true) {}
};

/// parallel::run_collectively in a step or a validation: `work` that fails is a StepFailure.
void run_in_step(parallel::Communicator& ranks, const std::function<void()>& work);

/// With several ranks every one calls the same functions; each works on its share of a batch, alone or with
/// those that divide the model, and metrics are the whole batch's everywhere.
class Trainer {
 public:
  virtual ~Trainer() = default;
  /// What is computed once, before load() or restore().
  virtual void precompute() {}
  /// Weights as the configuration says, optimizers at zero.
  virtual void load() = 0;
  [[nodiscard]] virtual std::int64_t steps_per_epoch() const = 0;
  /// Step `step`, counted from 0.
  virtual Metrics train_step(std::int64_t step) = 0;
  /// The last step's responses, all of them, where `shows_rollouts`; on the first rank.
  [[nodiscard]] virtual std::vector<report::Rollout> take_rollouts() { return {}; }
  [[nodiscard]] virtual bool can_validate() const = 0;
  /// After `step` steps.
  virtual Validation validate(std::int64_t step) = 0;
  /// Everything that later steps depend on, besides the step's number. The first rank writes.
  virtual void save(const std::filesystem::path& folder) = 0;
  virtual void restore(const std::filesystem::path& folder) = 0;
};

/// The trainer of `context.job.task`.
[[nodiscard]] std::unique_ptr<Trainer> make_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_sft_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_reward_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_dpo_trainer(Context& context);
[[nodiscard]] std::unique_ptr<Trainer> make_ppo_trainer(Context& context);  ///< and grpo

// ---- shared by the trainers ----

/// Whether the texts of step `step`, counted from 1, are shown: of the first and every
/// trainer.rollout_freq-th.
[[nodiscard]] inline bool shows_rollouts(const spec::TrainerConfig& config, std::int64_t step) {
  return config.rollout_freq > 0 && (step == 1 || step % config.rollout_freq == 0);
}

/// Runs `body` in a phase, waits for what it exchanges with copies of the model, and closes the phase.
void run_phase(Context& context, spec::PhaseId phase, const std::function<void()>& body);

/// Adds the seconds of its life to `timing_s/<name>`.
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

/// prefix/mean, /max and /min over the masked elements (or all).
void summarize(Metrics& metrics, const std::string& prefix, const at::Tensor& x,
               const at::Tensor& mask = {});

/// Shape of the job's batches.
[[nodiscard]] train::SequenceShape sequence_shape(const Context& context);

}  // namespace neap::rlhf
