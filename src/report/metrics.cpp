#include "report/metrics.h"

#include <chrono>
#include <cmath>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "report/run_folder.h"

namespace neap::report {

Status MetricsLogger::choose_sinks(const std::vector<std::string>& names, MetricsOptions& options) {
  options.console = options.jsonl = options.tensorboard = false;
  options.trackers.clear();
  for (const std::string& name : names) {
    if (name == "console")
      options.console = true;
    else if (name == "jsonl")
      options.jsonl = true;
    else if (name == "tensorboard")
      options.tensorboard = true;
    else if (name == "wandb" || name == "mlflow")
      options.trackers.push_back(name);
    else
      return {ErrorCode::kInvalidArgument,
              format("trainer.logger: \"{}\" is unknown; choose from console, jsonl, tensorboard, "
                     "wandb, mlflow",
                     name)};
  }
  return {};
}

Result<MetricsLogger> MetricsLogger::open(MetricsOptions options) {
  MetricsLogger logger(std::move(options));
  const MetricsOptions& o = logger.options_;
  std::error_code error;
  std::filesystem::create_directories(o.folder, error);
  if (error)
    return Status(ErrorCode::kIo, "Cannot make " + o.folder.string() + ": " + error.message());
  if (o.jsonl) {
    NEAP_TRY_ASSIGN(logger.lines_, StepLog::open(o.folder / kMetricsFile, o.resume_step));
  }
  if (o.tensorboard) {
    NEAP_TRY_ASSIGN(logger.events_, EventFile::open(o.folder / kTensorboardFolder, o.resume_step));
  }
  for (const std::string& kind : o.trackers) {
    TrackerOptions tracker{kind,         o.folder, o.project,
                           o.experiment, o.config, o.resume_step.value_or(0) > 0};
    if (tracker.experiment.empty())
      tracker.experiment =
          std::filesystem::absolute(o.folder / "").parent_path().filename().string();
    logger.trackers_.push_back(std::make_unique<Tracker>(tracker));
  }
  return logger;
}

Status MetricsLogger::log(std::uint64_t step, const Metrics& metrics) {
  if (options_.console) {
    constexpr std::size_t kLogPrefix = 6;  // length of "neap: "
    log::info(console_line(step, options_.total_steps, metrics, options_.console_keys,
                           terminal_columns() - kLogPrefix));
  }
  if (lines_) {
    Json fields = Json::object();
    for (const auto& [name, value] : metrics) fields[name] = value;
    NEAP_TRY(lines_->append(step, fields).with_context("logging metrics"));
  }
  return log_outside(step, metrics);
}

Status MetricsLogger::log_validation(std::uint64_t step, const Metrics& metrics) {
  return log_outside(step, metrics);
}

Status MetricsLogger::log_outside(std::uint64_t step, const Metrics& metrics) {
  for (const auto& tracker : trackers_) tracker->log(step, metrics);
  if (!events_) return {};
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return events_->append(now, step, metrics).with_context("logging metrics");
}

Status MetricsLogger::sync() {
  if (lines_) NEAP_TRY(lines_->sync());
  if (events_) NEAP_TRY(events_->sync());
  return {};
}

std::string console_line(std::uint64_t step, std::uint64_t total_steps, const Metrics& metrics,
                         const std::vector<ConsoleKey>& keys, std::size_t columns) {
  std::string line =
      total_steps > 0 ? format("step {}/{}", step, total_steps) : format("step {}", step);
  for (const ConsoleKey& key : keys) {
    const auto found = metrics.find(key.metric);
    if (found == metrics.end()) continue;
    const double value = found->second;
    // Shows three digits; whole numbers are shown completely.
    const bool whole = std::abs(value) >= 1000 && std::abs(value) < 1e6;
    const std::string text = "  " + key.label + (key.label.empty() ? "" : " ") +
                             (whole ? format("{:.0f}", value) : format("{:.3g}", value)) + key.unit;
    if (line.size() + text.size() <= columns) line += text;
  }
  return line;
}

}  // namespace neap::report
