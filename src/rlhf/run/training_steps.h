// The last stage of a training run: weights are loaded, the output's files are open, and steps,
// validations and checkpoints follow each other.
//
// Ranks     all call run().
// Threads   the one that prepared the run.
// Failure   Error or CollectiveError, with a message that names the remaining checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/interrupt.h"
#include "base/progress.h"
#include "base/status.h"
#include "rlhf/run/prepared_run.h"
#include "rlhf/run/run.h"
#include "rlhf/run/run_checkpoints.h"
#include "rlhf/run/run_start.h"
#include "rlhf/trainer/processor_share.h"
#include "rlhf/trainer/run_output.h"

namespace neap::rlhf {

class TrainingSteps {
 public:
  /// `files` are the open files of the output folder. All arguments must outlive it.
  TrainingSteps(RunStart& start, PreparedRun& prepared, RunOutput& files)
      : start_(start), prepared_(prepared), files_(files), checkpoints_(start, prepared, files) {}
  TrainingSteps(const TrainingSteps&) = delete;
  TrainingSteps& operator=(const TrainingSteps&) = delete;

  [[nodiscard]] Outcome run();

 private:
  void show_progress();
  /// Returns after the last step or at a signal.
  void run_steps();
  void loop();
  /// A step failed. Saves the steps before it, and ends the run with an error.
  [[noreturn]] void keep_steps_before(const StepFailure& failure);
  void one_step();
  [[nodiscard]] Metrics timed_step();
  void add_memory(Metrics& metrics);
  void note_processor_share(double cpu_seconds, double seconds);
  void end_where_updates_fail();
  void write_logs(const std::function<void()>& write);
  void end_where_logs_fail();
  void validate();
  void note_validation(const Metrics& metrics);
  void conclude();
  void print_targets() const;

  RunStart& start_;
  PreparedRun& prepared_;
  RunOutput& files_;
  RunCheckpoints checkpoints_;
  RunPosition& position_ = start_.position;
  bridge::Runtime& runtime_ = prepared_.live().runtime();
  ProcessorShare processor_share_{start_.device.target.threads};
  std::optional<Progress> progress_;  // on the first rank
  std::int64_t validated_ = -1;
  Status log_failure_;
  double skipped_in_a_row_ = 0;  // at the end of the last step; the maximum over models
  bool interrupted_ = false;
  // From the first step until the end of the run is printed.
  std::optional<InterruptScope> interrupts_;
};

/// Opens the files of the prepared run in its output folder.
[[nodiscard]] std::unique_ptr<RunOutput> open_output(RunStart& start, PreparedRun& prepared);

}  // namespace neap::rlhf
