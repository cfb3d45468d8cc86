#include "rlhf/trainer/run_output.h"

#include <cstdio>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "report/load_report.h"
#include "rlhf/trainer/phase_records.h"
#include "rlhf/trainer/summary.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

report::MetricsLogger open_metrics(const spec::Job& job, const fs::path& output,
                                   std::int64_t total_steps, std::optional<std::int64_t> from) {
  report::MetricsOptions options;
  options.folder = output;
  options.total_steps = static_cast<std::uint64_t>(total_steps);
  options.resume_step = from;
  options.console_keys = {{"timing_s/step", "", " s"},        {"train/loss", "loss"},
                          {"train/accuracy", "accuracy"},     {"rewards/accuracies", "accuracy"},
                          {"rewards/margins", "margin"},      {"critic/score/mean", "score"},
                          {"response_length/mean", "length"}, {"actor/reward_kl_penalty", "kl"},
                          {"actor/kl_loss", "kl_loss"},       {"actor/entropy", "entropy"},
                          {"critic/vf_loss", "vf_loss"},      {"actor/pg_loss", "pg_loss"}};
  throw_if_error(report::MetricsLogger::choose_sinks(job.trainer.logger, options));
  options.project = job.trainer.project_name;
  options.experiment = job.trainer.experiment_name;
  spec::Job copy = job;
  options.config = copy.bind().to_json();
  return value_or_throw(report::MetricsLogger::open(options));
}

// Wraps the head and the texts in lines of at most `columns` characters. The first line starts
// after "neap: ".
std::string in_lines(const std::string& head, const std::vector<std::string>& texts,
                     std::size_t columns) {
  std::string out = head;
  std::size_t used = std::string_view("neap: ").size() + head.size();
  for (const std::string& text : texts) {
    const bool fits = used + 2 + text.size() <= columns;
    if (!fits) used = 0;
    out += (fits ? "  " : "\n  ") + text;
    used += 2 + text.size();
  }
  return out;
}

}  // namespace

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

RunOutput::RunOutput(const spec::Job& job, RunFolders folders, const plan::MemoryPlan& plan,
                     std::int64_t total_steps, std::optional<std::int64_t> from)
    : folders_(std::move(folders)),
      plan_(plan),
      phases_(value_or_throw(report::PhaseLog::open(folders_.own, from))),
      shown_rollouts_(static_cast<std::size_t>(job.trainer.rollout_samples)),
      health_(job) {
  throw_if_error(write_file_atomic(folders_.own / std::string(report::kPlanFile),
                                   json_text(plan.to_json(), 1) + "\n"));
  if (!folders_.first()) return;
  metrics_.emplace(open_metrics(job, folders_.output, total_steps, from));
  validations_.emplace(
      value_or_throw(report::StepLog::open(folders_.output / report::kValidationFile, from)));
  rollouts_.emplace(value_or_throw(
      report::RolloutLog::open(folders_.output, from, job.trainer.rollout_max_size)));
  open_health(from);
}

void RunOutput::open_health(std::optional<std::int64_t> from) {
  const fs::path path = folders_.output / std::string(report::kWarningsFile);
  warnings_.emplace(value_or_throw(report::StepLog::open(path, from)));
  if (!from || *from < 0) return;
  std::set<std::string> warned;
  for (const Json& row : value_or_throw(report::StepLog::read(path)))
    if (const Json sign = row.value("sign", Json()); sign.is_string())
      warned.insert(sign.get<std::string>());
  const fs::path metrics = folders_.output / std::string(report::kMetricsFile);
  std::error_code ignored;
  if (fs::exists(metrics, ignored))
    throw_if_error(
        report::StepLog::for_each(metrics, [&](const Json& row) { health_.replay(row); }));
  health_.set_warned(warned);
}

void RunOutput::write_phases(const std::vector<bridge::PhaseMeasurement>& measured,
                             std::int64_t step, Metrics* metrics) {
  for (const bridge::PhaseMeasurement& m : measured) {
    const report::PhaseRecord record = record_of(m, plan_, step);
    throw_if_error(phases_.append(record));
    if (metrics == nullptr) continue;
    const std::string key = "memory/" + record.phase;
    (*metrics)[key + "/peak_gb"] = m.peak.gib();
    (*metrics)[key + "/moved_gb"] = record.moved.gib();
  }
}

void RunOutput::write_step(std::int64_t step, const Metrics& metrics) {
  if (!metrics_) return;
  throw_if_error(metrics_->log(static_cast<std::uint64_t>(step), metrics));
  for (const TrainingHealth::Warning& warning : health_.note(metrics)) {
    log::warn(warning.text);
    throw_if_error(warnings_->append(static_cast<std::uint64_t>(step),
                                     {{"sign", warning.sign}, {"warning", warning.text}}));
  }
}

void RunOutput::write_rollouts(std::int64_t step, const std::vector<report::Rollout>& rollouts) {
  if (!rollouts_ || rollouts.empty()) return;
  const auto shown = report::some_of(rollouts, shown_rollouts_);
  if (!shown.empty()) {
    std::string text = report::rollouts_text(shown, terminal_columns());
    text.pop_back();  // the log ends the line
    log::info(format("{} of the {} responses of step {}; all are in {}\n{}", shown.size(),
                     rollouts.size(), step,
                     (folders_.output / std::string(report::kRolloutsFile)).string(), text));
  }
  throw_if_error(rollouts_->append(static_cast<std::uint64_t>(step), rollouts));
}

void RunOutput::write_validation(std::int64_t step, const Validation& result, double seconds) {
  if (!validations_) return;
  Json line = Json::object();
  std::vector<std::string> shown;
  for (const auto& [name, value] : result.metrics) {
    line[name] = value;
    // Details are in the file only.
    const bool detail =
        name.ends_with("/min") || name.ends_with("/max") || name.starts_with("val-aux/");
    if (!detail) shown.push_back(format("{} {:.4g}", name, value));
  }
  line["timing_s/testing"] = seconds;
  line["samples"] = Json::array();
  for (const report::Rollout& sample : result.samples) line["samples"].push_back(sample.to_json());
  log::info(in_lines(format("validation at step {}:", step), shown, terminal_columns()));
  throw_if_error(validations_->append(static_cast<std::uint64_t>(step), line));
  throw_if_error(metrics_->log_validation(static_cast<std::uint64_t>(step), result.metrics));
}

Status RunOutput::sync() {
  Status first = phases_.sync();
  const auto sync_log = [&](auto& log) {
    if (!log) return;
    if (Status status = log->sync(); first.ok()) first = std::move(status);
  };
  sync_log(metrics_);
  sync_log(validations_);
  sync_log(rollouts_);
  sync_log(warnings_);
  return first;
}

void RunOutput::conclude(Bytes peak) const {
  const fs::path page = folders_.output / std::string(report::kReportFile);
  // The models are already saved, so a failing report or summary is only a warning.
  const Status written = report::write_report(folders_.output, page);
  if (written.ok()) {
    log::info(format("wrote report to {}", page.string()));
  } else {
    log::warn(format("No report: {}", written.message()));
  }
  try {
    print(summary_text(folders_.output, plan_, peak));
  } catch (const Error& e) {
    log::warn(format("No summary: {}", e.what()));
  }
}

}  // namespace neap::rlhf
