#include "rlhf/run_output.h"

#include <cstdio>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "report/load_report.h"
#include "rlhf/phase_records.h"
#include "rlhf/summary.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

report::MetricsLogger open_metrics(const spec::TrainerConfig& config, const fs::path& output,
                                   std::int64_t total_steps, std::optional<std::uint64_t> from) {
  report::MetricsOptions options;
  options.folder = output;
  options.total_steps = static_cast<std::uint64_t>(total_steps);
  options.resume_step = from;
  options.console_keys = {"train/loss",      "train/accuracy",       "critic/score/mean",
                          "actor/pg_loss",   "critic/vf_loss",       "actor/reward_kl_penalty",
                          "actor/entropy",   "response_length/mean", "rewards/accuracies",
                          "rewards/margins", "timing_s/step"};
  throw_if_error(report::MetricsLogger::choose_sinks(config.logger, options));
  return value_or_throw(report::MetricsLogger::open(options));
}

}  // namespace

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

RunOutput::RunOutput(const spec::TrainerConfig& config, RunFolders folders,
                     const plan::MemoryPlan& plan, std::int64_t total_steps,
                     std::optional<std::uint64_t> from)
    : folders_(std::move(folders)),
      plan_(plan),
      phases_(value_or_throw(report::PhaseLog::open(folders_.own, from))) {
  throw_if_error(write_file_atomic(folders_.own / std::string(report::kPlanFile),
                                   plan.to_json().dump(1) + "\n"));
  if (!folders_.first()) return;
  metrics_.emplace(open_metrics(config, folders_.output, total_steps, from));
  validations_.emplace(
      value_or_throw(report::StepLog::open(folders_.output / kValidationFile, from)));
}

void RunOutput::write_phases(const std::vector<bridge::PhaseMeasurement>& measured,
                             std::int64_t step, Metrics* metrics) {
  for (const bridge::PhaseMeasurement& m : measured) {
    const report::PhaseRecord record = record_of(m, plan_, step);
    throw_if_error(phases_.append(record));
    if (metrics == nullptr) continue;
    (*metrics)["memory/" + m.phase + "/peak_gb"] = m.peak.gib();
    (*metrics)["memory/" + m.phase + "/moved_gb"] = record.moved.gib();
  }
}

void RunOutput::write_step(std::int64_t step, const Metrics& metrics) {
  if (!metrics_) return;
  throw_if_error(metrics_->log(static_cast<std::uint64_t>(step), metrics));
}

void RunOutput::write_validation(std::int64_t step, const Validation& result, double seconds) {
  if (!validations_) return;
  Json line = Json::object();
  std::string text;
  for (const auto& [name, value] : result.metrics) {
    line[name] = value;
    text += format("  {} {:.4g}", name, value);
  }
  line["timing_s/testing"] = seconds;
  line["samples"] = Json::array();
  for (const Sample& sample : result.samples) {
    line["samples"].push_back(
        {{"prompt", sample.prompt}, {"response", sample.response}, {"verdict", sample.verdict}});
  }
  log::info(format("validation at step {}:{}", step, text));
  throw_if_error(validations_->append(static_cast<std::uint64_t>(step), line));
}

void RunOutput::sync() {
  throw_if_error(phases_.sync());
  if (metrics_) throw_if_error(metrics_->sync());
  if (validations_) throw_if_error(validations_->sync());
}

void RunOutput::conclude(Bytes peak) const {
  const fs::path page = folders_.output / std::string(report::kReportFile);
  // The models are saved: a report that fails is a warning, not an error.
  const Status written = report::write_report(folders_.output, page);
  if (written.ok()) {
    log::info(format("wrote report to {}", page.string()));
  } else {
    log::warn(format("No report: {}", written.message()));
  }
  print(summary_text(folders_.output, plan_, peak));
}

}  // namespace neap::rlhf
