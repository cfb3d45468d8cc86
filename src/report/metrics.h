// Logs the metrics of each step: a console line, a JSON line, TensorBoard scalars, W&B, MLflow.
//
// When log() returns, the system has the step: a process that is killed afterwards loses nothing. A
// run that resumes appends to the same files and logs no step twice.
//
// Threads   one owner at a time.
//
// Failure   Status; a step that cannot be written (disk full) leaves no incomplete line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "report/event_file.h"
#include "report/step_log.h"
#include "report/tracker.h"

namespace neap::report {

/// Names as in verl: "actor/ppo_kl", "timing_s/gen", "perf/max_memory_allocated_gb".
using Metrics = std::map<std::string, double>;

/// A number in the console's line: "score 0.5", "12.3 s".
struct ConsoleKey {
  std::string metric;
  std::string label;   ///< before the number; may be empty
  std::string unit{};  ///< after the number
};

struct MetricsOptions {
  std::filesystem::path folder;  ///< the run's folder, with metrics.jsonl and tensorboard/
  bool console = true;
  bool jsonl = true;
  bool tensorboard = true;
  std::vector<std::string> trackers{};  ///< "wandb", "mlflow" (tracker.h)
  std::string project, experiment;      ///< for the trackers
  Json config = Json::object();         ///< the job's settings, for the trackers
  std::uint64_t total_steps = 0;        ///< for "step 3/20"; 0: unknown
  /// Shown on the console, most important first. Keys that do not fit in the line are omitted.
  std::vector<ConsoleKey> console_keys;
  /// Step of the checkpoint that the run resumes from. -1: from the start, replacing files of a
  /// killed run. Unset: the run is new, and existing files are an error.
  std::optional<std::int64_t> resume_step;
};

class MetricsLogger {
 public:
  [[nodiscard]] static Result<MetricsLogger> open(MetricsOptions options);
  /// Parses `trainer.logger`: any of console, jsonl, tensorboard, wandb, mlflow. Other names are
  /// kInvalidArgument.
  [[nodiscard]] static Status choose_sinks(const std::vector<std::string>& names,
                                           MetricsOptions& options);

  Status log(std::uint64_t step, const Metrics& metrics);
  /// Logs metrics of the validation after `step`, to TensorBoard and the trackers only.
  Status log_validation(std::uint64_t step, const Metrics& metrics);
  /// Syncs to the disk; call with each checkpoint.
  Status sync();

 private:
  explicit MetricsLogger(MetricsOptions options) : options_(std::move(options)) {}
  Status log_outside(std::uint64_t step, const Metrics& metrics);
  MetricsOptions options_;
  std::optional<StepLog> lines_;
  std::optional<EventFile> events_;
  std::vector<std::unique_ptr<Tracker>> trackers_;
};

/// Writes "step 3/20  12.3 s  score 0.5" with the keys in `metrics`, in at most `columns`.
[[nodiscard]] std::string console_line(std::uint64_t step, std::uint64_t total_steps,
                                       const Metrics& metrics, const std::vector<ConsoleKey>& keys,
                                       std::size_t columns);

}  // namespace neap::report
