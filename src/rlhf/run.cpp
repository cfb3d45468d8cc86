#include "rlhf/run.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "model/tokenizer.h"
#include "report/gather.h"
#include "report/html.h"
#include "report/metrics.h"
#include "report/phase_table.h"
#include "report/run_folder.h"
#include "rlhf/interrupt.h"
#include "rlhf/stage.h"
#include "rlhf/summary.h"
#include "torch/runtime.h"
#include "trace/recorder.h"
#include "train/checkpoint.h"
#include "train/dataset.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStateFile = "trainer.json";

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

plan::MemoryPlan make_plan(const plan::Job& job) {
  return value_or_throw(plan::make_plan(job, bridge::Runtime::choose(job.device).target));
}

// Steps of the whole run. Reads the training files where epochs decide.
std::int64_t count_steps(const plan::Job& job) {
  if (job.trainer.total_training_steps > 0) return job.trainer.total_training_steps;
  const std::size_t rows = train::read_rows(resolve_all(job, job.data.train_files), {}).size();
  const train::BatchOrder order(rows, static_cast<std::size_t>(job.data.train_batch_size), false,
                                0);
  return job.trainer.total_epochs * order.steps_per_epoch();
}

Status draw(const fs::path& output, const fs::path& page) {
  NEAP_TRY_ASSIGN(const report::Report report, report::gather(output));
  NEAP_TRY_ASSIGN(const std::string html, report::report_html(report));
  return write_file_atomic(page, html);
}

Json config_json(const plan::Job& job) {
  plan::Job copy = job;
  return copy.bind().to_json();
}

// Keys whose values differ, as "path: was 1, is 2".
void differences(const Json& before, const Json& now, const std::string& path,
                 std::vector<std::string>& out) {
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : now.items()) {
      const std::string inner = path.empty() ? key : path + "." + key;
      if (before.contains(key)) differences(before[key], value, inner, out);
    }
  } else if (before != now) {
    out.push_back(format("{}: was {}, is {}", path, before.dump(), now.dump()));
  }
}

double resident_gib() {
  const auto status = read_file("/proc/self/status", 1_MiB);
  if (!status.ok()) return 0;
  const std::string& text = status.value();
  const auto at = text.find("VmRSS:");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 6, nullptr) / (1 << 20);
}

class Run {
 public:
  explicit Run(const plan::Job& job)
      : job_(job), output_(job.resolve(job.trainer.default_local_dir).lexically_normal()) {}

  Outcome execute();
  [[nodiscard]] Status refusal() const { return runtime_ ? runtime_->refusal() : ok_status(); }

 private:
  void check_output() const;
  void open_output();
  void build();
  void resume();
  void loop();
  void one_step();
  void take_measurements(Metrics* metrics);
  void validate();
  void save();
  void finish();

  const plan::Job& job_;
  fs::path output_;
  std::optional<train::FoundCheckpoint> found_;
  std::int64_t total_steps_ = 0;
  plan::MemoryPlan plan_;
  std::unique_ptr<trace::Recorder> recorder_;
  std::unique_ptr<bridge::Runtime> runtime_;
  std::optional<model::Tokenizer> tokenizer_;
  std::optional<Context> context_;
  std::unique_ptr<Stage> stage_;
  std::optional<report::MetricsLogger> metrics_;
  std::optional<report::PhaseLog> phases_;
  std::optional<report::StepLog> validations_;
  std::int64_t step_ = 0;  // steps that are done
  std::int64_t saved_ = -1;
  std::int64_t validated_ = -1;
};

Outcome Run::execute() {
  found_ = train::find_checkpoint(output_, job_.trainer.resume_mode,
                                  job_.resolve(job_.trainer.resume_mode));
  total_steps_ = count_steps(job_);
  if (found_ && found_->step >= total_steps_) {
    log::info(
        format("{} is at step {} of {}: done. More steps (trainer.total_training_steps, "
               "trainer.total_epochs) go on from there; another trainer.default_local_dir "
               "starts anew.",
               output_.string(), found_->step, total_steps_));
    return Outcome::kAlreadyDone;
  }
  plan_ = make_plan(job_);
  print(plan_.to_text() + "\n");
  check_output();
  build();
  // What can be wrong with data, weights and checkpoint is found before the run's files are touched.
  if (found_) {
    resume();
  } else {
    stage_->load();
  }
  open_output();
  if (!found_) validate();
  const InterruptScope interrupts;
  loop();
  if (InterruptScope::requested() && step_ < total_steps_) {
    log::warn(format("Interrupted after step {} of {}. The same command goes on from {}.", step_,
                     total_steps_, train::checkpoint_folder(output_, step_).string()));
    return Outcome::kInterrupted;
  }
  finish();
  return Outcome::kDone;
}

void Run::check_output() const {
  const fs::path metrics = output_ / std::string(report::kMetricsFile);
  std::error_code error;
  if (job_.trainer.resume_mode == "disable" && fs::exists(metrics, error)) {
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already; set trainer.default_local_dir to another folder, "
                       "or trainer.resume_mode = \"auto\" to go on",
                       output_.string()));
  }
  fs::create_directories(output_, error);
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", output_.string(), error.message()));
  }
}

void Run::build() {
  const fs::path folder =
      job_.resolve(job_.actor_model.tokenizer_path.empty() ? job_.actor_model.path
                                                           : job_.actor_model.tokenizer_path);
  tokenizer_.emplace(model::Tokenizer::from_folder(folder));
  const fs::path trace = output_ / std::string(report::kTraceFile);
  recorder_ = value_or_throw(trace::Recorder::open(trace, {{"plan", plan_.to_json().dump()}}));
  runtime_ = bridge::Runtime::make(job_, plan_, recorder_.get());
  context_.emplace(Context{job_, *runtime_, *tokenizer_, folder, total_steps_});
  stage_ = make_stage(*context_);
}

void Run::open_output() {
  // A folder with results but no checkpoint is what a killed run left, and "auto" starts over it.
  std::optional<std::uint64_t> from;
  if (found_) {
    from = static_cast<std::uint64_t>(found_->step);
  } else if (job_.trainer.resume_mode == "auto") {
    from = 0;
  }
  report::MetricsOptions options;
  options.folder = output_;
  options.total_steps = static_cast<std::uint64_t>(total_steps_);
  options.resume_step = from;
  options.console_keys = {"train/loss",    "train/accuracy",       "critic/score/mean",
                          "actor/pg_loss", "critic/vf_loss",       "actor/reward_kl_penalty",
                          "actor/entropy", "response_length/mean", "timing_s/step"};
  throw_if_error(report::MetricsLogger::choose_sinks(job_.trainer.logger, options));
  metrics_.emplace(value_or_throw(report::MetricsLogger::open(options)));
  phases_.emplace(value_or_throw(report::PhaseLog::open(output_, from)));
  validations_.emplace(value_or_throw(report::StepLog::open(output_ / kValidationFile, from)));
  throw_if_error(
      write_file_atomic(output_ / std::string(report::kPlanFile), plan_.to_json().dump(1) + "\n"));
}

void Run::resume() {
  const fs::path file = found_->folder / kStateFile;
  const Json state =
      value_or_throw(parse_json(value_or_throw(read_file(file, 16_MiB)), file.string()));
  if (!state.is_object() || state.value("task", "") != job_.task) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is not a checkpoint of task \"{}\"", file.string(), job_.task));
  }
  std::vector<std::string> changed;
  if (state.contains("config")) differences(state["config"], config_json(job_), "", changed);
  for (const std::string& line : changed) {
    log::warn(format("Differs from the checkpoint: {}", line));
  }
  stage_->restore(found_->folder);
  step_ = saved_ = found_->step;
  log::info(
      format("Going on from {}, step {} of {}", found_->folder.string(), step_, total_steps_));
}

void Run::loop() {
  Progress progress(job_.task, static_cast<std::uint64_t>(total_steps_), "steps");
  progress.update(static_cast<std::uint64_t>(step_));
  while (step_ < total_steps_ && !InterruptScope::requested()) {
    one_step();
    progress.update(static_cast<std::uint64_t>(step_));
    const bool last = step_ == total_steps_;
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    if (last || due(job_.trainer.test_freq)) validate();
    if (last || due(job_.trainer.save_freq)) save();
  }
  if (saved_ != step_) save();
}

void Run::one_step() {
  Metrics metrics;
  {
    const auto start = std::chrono::steady_clock::now();
    metrics = stage_->train_step(step_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    metrics["timing_s/step"] = metrics["perf/time_per_step"] = seconds.count();
    if (metrics.contains("perf/total_num_tokens")) {
      metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds.count();
    }
  }
  metrics["training/epoch"] = static_cast<double>(step_ / stage_->steps_per_epoch());
  ++step_;
  metrics["training/global_step"] = static_cast<double>(step_);
  take_measurements(&metrics);
  metrics["perf/max_memory_allocated_gb"] = runtime_->peak_allocated().gib();
  metrics["perf/max_memory_reserved_gb"] = runtime_->peak().gib();
  metrics["perf/cpu_memory_used_gb"] = resident_gib();
  throw_if_error(metrics_->log(static_cast<std::uint64_t>(step_), metrics));
}

void Run::take_measurements(Metrics* metrics) {
  for (const bridge::PhaseMeasurement& m : runtime_->take_measurements()) {
    report::PhaseRecord record;
    record.step = static_cast<std::uint64_t>(step_);
    record.phase = m.phase;
    record.persistent = m.persistent;
    record.transient_allocated = m.transient_allocated;
    record.transient_reserved = m.transient_reserved;
    record.peak = m.peak;
    record.fragmentation_at_peak = m.fragmentation_at_peak;
    record.moved = m.moved;
    record.seconds = m.seconds;
    record.move_seconds = m.move_seconds;
    throw_if_error(phases_->append(record));
    if (metrics == nullptr) continue;
    (*metrics)["memory/" + m.phase + "/peak_gb"] = m.peak.gib();
    (*metrics)["memory/" + m.phase + "/moved_gb"] = m.moved.gib();
  }
}

void Run::validate() {
  if (!stage_->can_validate() || validated_ == step_) return;
  const auto start = std::chrono::steady_clock::now();
  const Validation result = stage_->validate();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  validated_ = step_;
  take_measurements(nullptr);
  Json line = Json::object();
  std::string text;
  for (const auto& [name, value] : result.metrics) {
    line[name] = value;
    text += format("  {} {:.4g}", name, value);
  }
  line["timing_s/testing"] = seconds.count();
  line["samples"] = Json::array();
  for (const Sample& sample : result.samples) {
    line["samples"].push_back(
        {{"prompt", sample.prompt}, {"response", sample.response}, {"verdict", sample.verdict}});
  }
  log::info(format("validation at step {}:{}", step_, text));
  throw_if_error(validations_->append(static_cast<std::uint64_t>(step_), line));
}

void Run::save() {
  const auto start = std::chrono::steady_clock::now();
  throw_if_error(metrics_->sync());
  throw_if_error(phases_->sync());
  throw_if_error(validations_->sync());
  train::CheckpointWriter writer(output_, step_);
  stage_->save(writer.folder());
  Json state = Json::object();
  state["schema"] = 1;
  state["task"] = job_.task;
  state["step"] = step_;
  state["config"] = config_json(job_);
  throw_if_error(write_file_atomic(writer.folder() / kStateFile, state.dump(1) + "\n"));
  writer.commit(job_.trainer.max_ckpt_to_keep);
  saved_ = step_;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log::info(format("saved {} in {:.1f} s", train::checkpoint_folder(output_, step_).string(),
                   seconds.count()));
}

void Run::finish() {
  throw_if_error(recorder_->close());
  const fs::path page = output_ / std::string(report::kReportFile);
  // The models are safe by now: a drawing that fails is worth a warning, not the run.
  const Status drawn = draw(output_, page);
  if (drawn.ok()) {
    log::info(format("drawn in {}", page.string()));
  } else {
    log::warn(format("No report: {}", drawn.message()));
  }
  print(summary_text(output_, plan_, runtime_->peak()));
}

}  // namespace

Outcome run(const plan::Job& job) {
  Run run(job);
  try {
    return run.execute();
  } catch (const c10::OutOfMemoryError&) {
    throw_if_error(run.refusal());
    throw;
  }
}

}  // namespace neap::rlhf
