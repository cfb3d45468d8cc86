// What a run writes for people and programs to read: phases, metrics, validations, the report and its
// last words on the console. Each rank has its phases; the first one has the rest.
//
// Threads   one owner at a time.
// Failure   Error. Lines that cannot be written (disk full) are kept and tried again; too many of them are an Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "bridge/runtime.h"
#include "plan/memory_plan.h"
#include "report/metrics.h"
#include "report/rollout_log.h"
#include "report/run_folder.h"
#include "report/step_log.h"
#include "rlhf/trainer.h"
#include "rlhf/training_health.h"
#include "spec/job.h"

namespace neap::rlhf {

struct RunFolders {
  std::filesystem::path output;  ///< of all ranks
  std::filesystem::path own;     ///< of this rank's files; the first one's is `output`
  [[nodiscard]] bool first() const { return output == own; }
};

class RunOutput {
 public:
  /// Opens the files and writes the plan. `from`: the step of the checkpoint that the run resumes from
  /// (-1: from the start, over what a killed run left); unset: the folder has to be without a run.
  RunOutput(const spec::Job& job, RunFolders folders, const plan::MemoryPlan& plan,
            std::int64_t total_steps, std::optional<std::int64_t> from);

  /// Notes the phases of step `step`, and in `metrics`, if any, what they held and moved.
  void write_phases(const std::vector<bridge::PhaseMeasurement>& measured, std::int64_t step,
                    Metrics* metrics);
  /// Warns of signs that the training goes wrong.
  void write_step(std::int64_t step, const Metrics& metrics);
  /// The responses of step `step`: some of them to the console.
  void write_rollouts(std::int64_t step, const std::vector<report::Rollout>& rollouts);
  void write_validation(std::int64_t step, const Validation& result, double seconds);
  /// To the disk; call with each checkpoint. Rows that cannot be written are kept.
  [[nodiscard]] Status sync();
  /// The folder has another path; the files stay open.
  void moved_to(const std::filesystem::path& output) {
    folders_.output = output;
    if (rollouts_) rollouts_->moved_to(output);
  }
  /// The report's page, and the summary on stdout; a warning where one of them fails. `peak`: of the
  /// rank that held most.
  void conclude(Bytes peak) const;

 private:
  void open_health(std::optional<std::int64_t> from);

  RunFolders folders_;
  const plan::MemoryPlan& plan_;
  report::PhaseLog phases_;
  std::optional<report::MetricsLogger> metrics_;
  std::optional<report::StepLog> validations_;
  std::optional<report::RolloutLog> rollouts_;
  std::size_t shown_rollouts_;  // at a step, on the console
  TrainingHealth health_;
  std::optional<report::StepLog> warnings_;
};

/// To stdout, at once.
void print(const std::string& text);

}  // namespace neap::rlhf
