// Output of a run for people and programs: phases, metrics, validations, the report, and the
// summary on the console. Each rank writes its phases; the first one writes the rest.
//
// Threads   one owner at a time.
// Failure   Error. Lines that cannot be written (disk full) are kept and written later; too many of
//           them are an Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "bridge/runtime.h"
#include "plan/results/memory_plan.h"
#include "report/metrics.h"
#include "report/rollout_log.h"
#include "report/run_folder.h"
#include "report/step_log.h"
#include "rlhf/trainer/trainer.h"
#include "rlhf/trainer/training_health.h"
#include "spec/job/job.h"

namespace neap::rlhf {

struct RunFolders {
  std::filesystem::path output;  ///< of the whole run
  std::filesystem::path own;     ///< for this rank's files; `output` on the first rank
  [[nodiscard]] bool first() const { return output == own; }
};

class RunOutput {
 public:
  /// Opens the files and writes the plan. `from` is the step of the checkpoint that the run resumes
  /// from. -1 restarts from scratch over the files of a killed run. If it is unset, the folder must
  /// not have a run.
  RunOutput(const spec::Job& job, RunFolders folders, const plan::MemoryPlan& plan,
            std::int64_t total_steps, std::optional<std::int64_t> from);

  /// Records the phases of step `step`. If `metrics` is not null, it gets their memory and
  /// transfers.
  void write_phases(const std::vector<bridge::PhaseMeasurement>& measured, std::int64_t step,
                    Metrics* metrics);
  /// Writes metrics, and warns if they indicate a failing training.
  void write_step(std::int64_t step, const Metrics& metrics);
  /// Writes the responses of step `step`, and prints some of them.
  void write_rollouts(std::int64_t step, const std::vector<report::Rollout>& rollouts);
  void write_validation(std::int64_t step, const Validation& result, double seconds);
  /// Flushes to disk; call it with each checkpoint. Rows that cannot be written are kept.
  [[nodiscard]] Status sync();
  /// Sets the folder's new path. Open files stay open.
  void moved_to(const std::filesystem::path& output) {
    folders_.output = output;
    if (rollouts_) rollouts_->moved_to(output);
  }
  /// Writes the report page, and prints the summary to stdout. A failure is only a warning. `peak`
  /// is that of the rank with the highest peak.
  void conclude(Bytes peak) const;

 private:
  void open_health(std::optional<std::int64_t> from);

  RunFolders folders_;
  const plan::MemoryPlan& plan_;
  report::PhaseLog phases_;
  std::optional<report::MetricsLogger> metrics_;
  std::optional<report::StepLog> validations_;
  std::optional<report::RolloutLog> rollouts_;
  std::size_t shown_rollouts_;  // per step, on the console
  TrainingHealth health_;
  std::optional<report::StepLog> warnings_;
};

/// Prints to stdout and flushes.
void print(const std::string& text);

}  // namespace neap::rlhf
