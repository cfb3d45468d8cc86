// The third stage of a training run: plan and inputs are known, runtime and trainer exist, and the
// output folder is as it was. Errors in data, weights and checkpoint are found here, before the
// run's files are modified.
//
// Threads   the one that made it.
// Failure   Error on every rank; a parallel::CollectiveError if there are several.
#pragma once

#include <filesystem>
#include <memory>

#include "plan/results/memory_plan.h"
#include "rlhf/run/live_job.h"
#include "rlhf/run/run_plan.h"
#include "rlhf/run/run_start.h"
#include "rlhf/trainer/trainer.h"
#include "trace/recorder.h"

namespace neap::rlhf {

/// The trace of a run in its folder `own`. It has a temporary name until keep(), so that a rejected
/// run keeps an older trace.
class RunTrace {
 public:
  /// Records nothing with trainer.trace_max_size = 0.
  RunTrace(const spec::Job& job, const std::filesystem::path& own, const plan::MemoryPlan& plan);
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;
  ~RunTrace();

  [[nodiscard]] trace::Recorder* recorder() const { return recorder_.get(); }
  /// Replaces the trace of an earlier process.
  void keep();
  /// A failure is only a warning.
  void close();

 private:
  std::filesystem::path path_;
  bool kept_ = false;
  std::unique_ptr<trace::Recorder> recorder_;  // null: records nothing
};

class PreparedRun {
 public:
  /// Prints the plan, and makes runtime and trainer. `start` and `planned` must outlive it.
  PreparedRun(RunStart& start, const RunPlan& planned);
  PreparedRun(const PreparedRun&) = delete;
  PreparedRun& operator=(const PreparedRun&) = delete;

  /// Loads weights and states: those of the checkpoint to resume from, or of the configuration.
  void load();

  [[nodiscard]] const plan::MemoryPlan& plan() const { return planned_.plan(); }
  [[nodiscard]] RunTrace& trace() { return *trace_; }
  [[nodiscard]] LiveJob& live() { return *live_; }
  [[nodiscard]] Trainer& trainer() { return *trainer_; }
  [[nodiscard]] const Rows& rows() { return start_.inputs().data.train; }

 private:
  void print_plan() const;
  void check_output() const;
  void load_or_restore();
  void warn_of_changes();

  RunStart& start_;
  const RunPlan& planned_;
  std::unique_ptr<RunTrace> trace_;  // the constructor sets all three
  std::unique_ptr<LiveJob> live_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace neap::rlhf
