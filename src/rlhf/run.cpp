#include "rlhf/run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "bridge/torch_cuda.h"
#include "model/tokenizer.h"
#include "parallel/run_collectively.h"
#include "report/metrics.h"
#include "report/run_folder.h"
#include "rlhf/best_checkpoint.h"
#include "rlhf/job_data.h"
#include "rlhf/output_folder.h"
#include "rlhf/run_output.h"
#include "rlhf/run_state.h"
#include "rlhf/stop_target.h"
#include "rlhf/trainer.h"
#include "trace/recorder.h"
#include "train/checkpoint.h"
#include "train/checkpoint_files.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : " ") + part;
  return out;
}

constexpr std::int64_t kRescuing = -2;  // in place of the step that is saved

class Run {
 public:
  Run(const spec::Job& job, const plan::DeviceChoice& device, parallel::Communicator& ranks)
      : job_(job),
        device_(device),
        ranks_(ranks),
        output_(job.output_folder()),
        folders_{output_.path(), ranks.first()
                                     ? output_.path()
                                     : output_.path() / "ranks" / std::to_string(ranks.rank())} {}

  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    std::error_code ignored;
    if (recorder_ && !files_) fs::remove(recorder_->path(), ignored);
  }

  Outcome execute();
  [[nodiscard]] Status last_oom() const { return runtime_ ? runtime_->last_oom() : ok_status(); }

 private:
  void compare_jobs();
  void compare_plans();
  [[nodiscard]] bool already_done();
  void find_state();
  [[nodiscard]] bool is_finished() const;
  [[nodiscard]] std::int64_t count_steps();
  void read_data();
  void prepare();
  void load();
  void make_plan();
  void keep_states();
  void check_output() const;
  void open_trace();
  void open_output();
  void build();
  void resume();
  void show_progress();
  void loop();
  [[noreturn]] void keep_steps_before(const StepFailure& failure);
  void one_step();
  void follow_output();
  /// Saves in another folder.
  [[noreturn]] void rescue();
  void validate();
  void note_validation(const Metrics& metrics);
  void save();
  /// The last step, if it is not saved yet; returns when it is on the disk.
  void save_last();
  /// `work` writes a checkpoint or waits for one. If it fails, the message says which one is left.
  void at_checkpoint(const std::function<void()>& work);
  [[nodiscard]] Status stopped(const Status& why, const std::string& kept) const;
  void finish();

  spec::Job job_;  // with what the plan chose
  const plan::DeviceChoice& device_;
  parallel::Communicator& ranks_;
  OutputFolder output_;  // locked by the first rank
  RunFolders folders_;
  Json identity_;  // of the job as it came
  std::optional<train::FoundCheckpoint> found_;
  Json state_ = Json::object();  // of that checkpoint
  std::int64_t total_steps_ = 0;
  plan::MemoryPlan plan_;
  std::unique_ptr<trace::Recorder> recorder_;
  std::unique_ptr<bridge::Runtime> runtime_;
  std::optional<model::Tokenizer> tokenizer_;
  std::optional<TextContext> texts_;
  std::optional<reward::RewardSet> rewards_;
  std::optional<JobData> data_;
  std::optional<Progress> progress_;  // of the first rank
  std::optional<Context> context_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunOutput> files_;
  BestCheckpoint best_{job_.trainer};
  StopTarget stop_{job_.trainer};
  train::BackgroundCommit commit_;
  std::int64_t step_ = 0;  // steps that are done
  std::int64_t saved_ = -1;
  std::int64_t validated_ = -1;
  bool interrupted_ = false;
};

Outcome Run::execute() {
  compare_jobs();
  if (already_done()) return Outcome::kAlreadyDone;
  // Errors in data, weights and checkpoint are found before the run's files are touched.
  parallel::run_collectively(ranks_, [&] { make_plan(); });
  compare_plans();
  throw_if_error(job_.apply(plan_.overrides));
  parallel::run_collectively(ranks_, [&] { prepare(); });
  ranks_.expect_same({{"data.train_files", joined(data_->train.files().contents())},
                      {"data.val_files", joined(data_->held_out.files().contents())}});
  trainer_->precompute();
  parallel::run_collectively(ranks_, [&] { load(); });
  parallel::run_collectively(ranks_, [&] { open_output(); });
  files_->write_phases(runtime_->take_measurements(), step_, nullptr);
  std::optional<InterruptScope> interrupts;  // until the last checkpoint is written
  show_progress();
  try {
    if (!found_) validate();
    interrupts.emplace(
        "\nStopping after this step, with a checkpoint. Once more to stop at once, without.\n");
    loop();
  } catch (const StepInterrupted&) {
    interrupted_ = true;
    save_last();
  } catch (const StepFailure& e) {
    keep_steps_before(e);
  }
  if (progress_) progress_->finish();
  if (interrupted_ && step_ < total_steps_) {
    log::warn(format("Interrupted after step {} of {}. The same command resumes from {}.", step_,
                     total_steps_, train::checkpoint_folder(output_.path(), step_).string()));
    return Outcome::kInterrupted;
  }
  finish();
  return Outcome::kDone;
}

// Ranks that train different things would add up gradients that do not belong together, or wait for
// each other for ever. What a rank runs on may differ.
void Run::compare_jobs() {
  std::vector<parallel::Communicator::NamedText> texts;
  for (const auto& [path, value] : job_.bind().values()) {
    if (path.rfind("device.", 0) != 0) texts.push_back({path, value.dump()});
  }
  ranks_.expect_same(texts);
}

// Ranks whose devices have less free memory, or other rates, may have chosen otherwise; ranks whose
// folders hold other models have tags of other sizes.
void Run::compare_plans() {
  std::string choices;
  for (const std::string& text : plan_.overrides) choices += text + " ";
  ranks_.expect_same(
      {{"what the plan chose of the job's keys (memory.allow; set device.memory, and "
        "run `neap doctor` on every machine or on none)",
        choices}});
  std::vector<parallel::Communicator::NamedText> texts;
  for (const plan::TagPlan& tag : plan_.tags)
    texts.push_back({"the size of " + tag.tag, to_string(tag.bytes)});
  ranks_.expect_same(texts);
}

void Run::keep_steps_before(const StepFailure& failure) {
  if (step_ > 0) save_last();
  const std::string kept = step_ > 0
                               ? format("They are saved in {}; the same command resumes from there",
                                        train::checkpoint_folder(output_.path(), step_).string())
                               : std::string("The same command starts again");
  throw StepFailure(stopped(failure.status(), kept), failure.mine());
}

Status Run::stopped(const Status& why, const std::string& kept) const {
  return {why.code(),
          format("Stopped after {} of {} steps: {}. {}", step_, total_steps_, why.message(), kept)};
}

void Run::at_checkpoint(const std::function<void()>& work) {
  const auto with_what_is_left = [&](const Status& why) {
    const auto found = train::find_checkpoint(output_.path(), "auto", {});
    return stopped(why, found
                            ? format("The newest checkpoint is {}; the same command resumes "
                                     "from there",
                                     found->folder.string())
                            : std::string("There is no checkpoint; the same command starts again"));
  };
  try {
    work();
  } catch (const parallel::CollectiveError& e) {
    throw parallel::CollectiveError(with_what_is_left(e.status()), e.mine());
  } catch (const Error& e) {
    if (ranks_.alone() && saved_ != kRescuing && !output_.is_there()) rescue();
    throw Error(with_what_is_left(e.status()));
  }
}

bool Run::already_done() {
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first()) output_.lock();
    find_state();
    total_steps_ = count_steps();
    stop_.restore(state_.value("stop", Json()), found_ ? found_->step : 0);
    if (is_finished()) check_finished(state_, *found_, job_, identity_);
  });
  ranks_.expect_same(found_ ? found_->step : -1,
                     format("The newest checkpoint's step in {} (all machines have to share the "
                            "folder; -1 is none)",
                            output_.path().string()));
  ranks_.expect_same(total_steps_, "The number of steps");
  if (stop_.reached()) {
    log::info(
        format("{} is done: {}. To continue, set another trainer.stop_value or none; to start "
               "anew, set another trainer.default_local_dir.",
               output_.path().string(), stop_.text()));
    return true;
  }
  if (!is_finished()) return false;
  log::info(
      format("{} is at step {} of {}: done. To continue, raise trainer.total_training_steps or "
             "trainer.total_epochs; to start anew, set another "
             "trainer.default_local_dir.",
             output_.path().string(), found_->step, total_steps_));
  return true;
}

bool Run::is_finished() const {
  return found_ && (stop_.reached() || found_->step >= total_steps_);
}

// The checkpoint to resume from, if there is one, and what it says.
void Run::find_state() {
  found_ = train::find_checkpoint(output_.path(), job_.trainer.resume_mode,
                                  job_.resolve(job_.trainer.resume_mode));
  identity_ = identity_of(job_);
  if (!found_) return;
  try {
    state_ = read_run_state(found_->folder);
    train::check_files(found_->folder);
  } catch (const Error& e) {
    throw Error(broken_checkpoint(e.status(), *found_));
  }
  check_task(state_, found_->folder, job_);
}

// Where epochs decide, it depends on the rows.
std::int64_t Run::count_steps() {
  if (job_.trainer.total_training_steps > 0) return job_.trainer.total_training_steps;
  read_data();
  return job_.trainer.total_epochs * batch_order(job_, *data_).steps_per_epoch();
}

void Run::read_data() {
  texts_.emplace(open_texts(job_, tokenizer_));
  rewards_.emplace(make_rewards(job_, device_.target.threads));
  data_.emplace(rlhf::read_data(*texts_, reward_check(job_, *rewards_),
                                encoding_threads(device_.target.threads, ranks_.size())));
}

void Run::make_plan() {
  if (found_) keep_states();
  plan_ = value_or_throw(plan::make_plan(job_, device_.target));
}

void Run::prepare() {
  if (ranks_.first()) {
    if (!ranks_.alone())
      print(format("{} ranks over {}; this is the plan of each\n\n", ranks_.size(), ranks_.name()));
    print(plan_.to_text() + "\n");
  }
  check_output();
  build();
  if (found_) check_run_state(state_, found_->folder, job_, identity_, data_->train);
}

void Run::load() {
  if (found_) {
    resume();
  } else {
    trainer_->load();
  }
}

// Optimizer states are read in the type that they were written in: a plan does not choose it again.
void Run::keep_states() {
  if (!job_.memory.allows(spec::Measure::kBf16States)) return;
  auto& allow = job_.memory.allow;
  allow.erase(std::remove(allow.begin(), allow.end(), to_string(spec::Measure::kBf16States)),
              allow.end());
  throw_if_error(job_.apply(saved_choices(state_)));
}

void Run::check_output() const {
  const fs::path metrics = output_.path() / std::string(report::kMetricsFile);
  std::error_code error;
  if (ranks_.first() && job_.trainer.resume_mode == "disable" && fs::exists(metrics, error)) {
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already; set trainer.default_local_dir to another folder, "
                       "or trainer.resume_mode = \"auto\" to resume",
                       output_.path().string()));
  }
  fs::create_directories(folders_.own, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                format("Cannot create {}: {}", folders_.own.string(), error.message()));
  }
}

void Run::build() {
  if (!data_) read_data();
  open_trace();
  runtime_ = bridge::Runtime::make(job_, device_, plan_, recorder_.get());
  context_.emplace(Context{*texts_, *runtime_, ranks_, *data_, *rewards_, total_steps_});
  trainer_ = make_trainer(*context_);
}

// Under another name until nothing can fail any more: a run that is refused leaves an older trace.
void Run::open_trace() {
  if (job_.trainer.trace_max_size.is_zero()) return;
  const fs::path trace = folders_.own / (std::string(report::kTraceFile) + ".new");
  trace::RecorderOptions options;
  options.most_bytes = job_.trainer.trace_max_size;
  recorder_ =
      value_or_throw(trace::Recorder::open(trace, {{"plan", plan_.to_json().dump()}}, options));
}

void Run::open_output() {
  // A killed run can leave results without a checkpoint; "auto" starts over them.
  std::optional<std::int64_t> from;
  if (found_) {
    from = found_->step;
  } else if (job_.trainer.resume_mode == "auto") {
    from = -1;
  }
  remove_temporary_files(folders_.own);
  const fs::path trace = folders_.own / std::string(report::kTraceFile);
  if (recorder_) {
    throw_if_error(recorder_->rename(trace));
  } else {
    std::error_code ignored;
    fs::remove(trace, ignored);  // of an earlier process: it is not this run's memory
  }
  files_.emplace(job_, folders_, plan_, total_steps_, from);
  // A kill between a checkpoint and its links, or an older checkpoint to resume from.
  if (ranks_.first() && !job_.trainer.best_metric.empty())
    (void)train::point_best(output_.path(), best_.step());
}

void Run::resume() {
  try {
    trainer_->restore(found_->folder);
  } catch (const Error& e) {
    throw Error(refused_resume(e.status(), *found_, state_, job_));
  }
  best_.restore(state_.value("best", Json()), output_.path());
  step_ = saved_ = found_->step;
  log::info(
      format("Resuming from {}, step {} of {}", found_->folder.string(), step_, total_steps_));
}

void Run::show_progress() {
  if (!ranks_.first()) return;
  progress_.emplace(std::string(to_string(job_.task)), static_cast<std::uint64_t>(total_steps_),
                    "steps");
  context_->progress = &*progress_;
}

void Run::loop() {
  if (progress_) progress_->start(static_cast<std::uint64_t>(step_));
  while (step_ < total_steps_ && !stop_.reached()) {
    // A signal may reach one rank first, or only one: all stop after the same step.
    interrupted_ = ranks_.any(InterruptScope::requested());
    if (interrupted_) break;
    one_step();
    follow_output();
    at_checkpoint([&] { commit_.poll(); });
    if (progress_) progress_->update(static_cast<std::uint64_t>(step_));
    const bool last = step_ == total_steps_;
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    if (last || due(job_.trainer.test_freq)) validate();
    if (last || stop_.reached() || due(job_.trainer.save_freq) || best_.step() == step_)
      at_checkpoint([&] { save(); });
  }
  save_last();
}

// The output folder may have been moved or removed during the step.
void Run::follow_output() {
  const fs::path before = output_.path();
  const bool lost = !output_.is_there();
  if (ranks_.any(lost)) rescue();
  if (output_.path() != before) files_->moved_to(output_.path());
}

void Run::rescue() {
  try {
    commit_.wait();
  } catch (const Error& e) {
    log::debug(e.what());  // of the lost folder
  }
  std::string loss = "The output folder is lost";
  if (ranks_.first()) loss = output_.replace();
  saved_ = kRescuing;
  save_last();
  throw parallel::CollectiveError(
      stopped({ErrorCode::kIo, std::move(loss)},
              format("They are saved in {}; logs are not. To resume, set "
                     "trainer.default_local_dir={}",
                     train::checkpoint_folder(output_.path(), step_).string(),
                     output_.path().string())),
      ranks_.first());
}

void Run::one_step() {
  Metrics metrics;
  {
    const auto start = std::chrono::steady_clock::now();
    metrics = trainer_->train_step(step_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    metrics["timing_s/step"] = metrics["perf/time_per_step"] = seconds.count();
    if (metrics.contains("perf/total_num_tokens")) {
      metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds.count();
    }
  }
  const std::int64_t epoch = step_ / trainer_->steps_per_epoch();
  metrics["training/epoch"] = static_cast<double>(epoch);
  ++step_;
  metrics["training/global_step"] = static_cast<double>(step_);
  files_->write_phases(runtime_->take_measurements(), step_, &metrics);
  // The rank that took most: the ceiling holds for each.
  std::vector<double> memory = {runtime_->peak_allocated().gib(), runtime_->peak().gib(),
                                resident_memory().gib()};
  ranks_.max(memory);
  metrics["perf/max_memory_allocated_gb"] = memory[0];
  metrics["perf/max_memory_reserved_gb"] = memory[1];
  metrics["perf/cpu_memory_used_gb"] = memory[2];
  files_->write_step(step_, metrics);
  files_->write_rollouts(step_, trainer_->take_rollouts());
}

void Run::validate() {
  if (!trainer_->can_validate() || validated_ == step_) return;
  const auto start = std::chrono::steady_clock::now();
  const Validation result = trainer_->validate(step_);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  validated_ = step_;
  files_->write_phases(runtime_->take_measurements(), step_, nullptr);
  note_validation(result.metrics);
  files_->write_validation(step_, result, seconds.count());
}

void Run::note_validation(const Metrics& metrics) {
  if (best_.offer(step_, metrics))
    log::info(format("Step {} is the best so far: {} {:.4g}", step_, job_.trainer.best_metric,
                     best_.value()));
  stop_.note(step_, metrics);
}

void Run::save() {
  const auto start = std::chrono::steady_clock::now();
  files_->sync();
  saved_ = step_;
  if (progress_) progress_->begin_part("checkpoint");
  if (!ranks_.first()) {
    trainer_->save({});
    return;
  }
  commit_.wait();
  auto writer = std::make_unique<train::CheckpointWriter>(output_.path(), step_);
  trainer_->save(writer->folder());
  write_run_state(writer->folder(), step_, job_, identity_, data_->train, best_, stop_);
  commit_.start(std::move(writer), {job_.trainer.max_ckpt_to_keep, best_.step()});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log::info(format("wrote {} in {:.1f} s; it goes to the disk in the background",
                   train::checkpoint_folder(output_.path(), step_).string(), seconds.count()));
}

void Run::save_last() {
  at_checkpoint([&] {
    if (saved_ != step_) save();
    commit_.wait();
  });
}

void Run::finish() {
  if (recorder_) throw_if_error(recorder_->close());
  std::vector<double> peak = {static_cast<double>(runtime_->peak().count())};
  ranks_.max(peak);
  if (!ranks_.first()) return;
  files_->conclude(Bytes(static_cast<std::uint64_t>(peak[0])));
  if (stop_.reached()) print(format("stopped        {}\n", stop_.text()));
  if (best_.step())
    print(format("best           {} {:.4g} at step {}: {}\n", job_.trainer.best_metric,
                 best_.value(), *best_.step(), (output_.path() / "best").string()));
  if (const auto start = best_.better_start())
    print(format("start          {} {:.4g} before the first step: better than every checkpoint\n",
                 job_.trainer.best_metric, *start));
}

}  // namespace

Launch join_ranks(spec::Job& job, const parallel::Environment& environment) {
  // A launcher may make only one GPU visible to each rank.
  if (environment.size > 1 && job.device.kind != "host" && bridge::torch_cuda().devices > 1)
    job.device.ordinal += environment.local_rank;
  Launch launch{bridge::choose_run_device(job.device), nullptr};
  if (environment.size == 1) {
    launch.ranks = parallel::make_single();
    return launch;
  }
  // The machine's memory is for all of its ranks.
  launch.device.target.host_memory =
      launch.device.target.host_memory / static_cast<std::uint64_t>(environment.local_size);
  parallel::ConnectOptions options;
  options.timeout_seconds = static_cast<double>(job.nccl_timeout);
  if (launch.device.target.cuda)
    options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
  launch.ranks = parallel::connect(environment, options);
  return launch;
}

Outcome run(const spec::Job& job, const Launch& launch) {
  const bridge::NoAutograd no_autograd;
  Run run(job, launch.device, *launch.ranks);
  try {
    return run.execute();
  } catch (const c10::OutOfMemoryError&) {
    throw_if_error(run.last_oom());
    throw;
  }
}

}  // namespace neap::rlhf
