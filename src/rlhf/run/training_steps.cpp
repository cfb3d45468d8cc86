// The steps of a run, its validations and checkpoints.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/process.h"
#include "parallel/run_collectively.h"
#include "rlhf/run/training_run.h"
#include "rlhf/trainer/model_update.h"
#include "rlhf/trainer/run_state.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kRescuing = -2;  // used instead of the number of the step that is saved
// A run ends if this many updates of a model in a row were skipped, because the next ones would
// also be skipped.
constexpr double kMostSkippedInARow = 10;
// Seconds that are worth a word.
constexpr double kShownWait = 0.1;

double value_or_zero(const Metrics& metrics, const char* name) {
  const auto at = metrics.find(name);
  return at == metrics.end() ? 0 : at->second;
}

}  // namespace

void TrainingRun::show_progress() {
  if (!ranks_.first()) return;
  progress_.emplace(std::string(to_string(job_.task)), static_cast<std::uint64_t>(total_steps_),
                    "steps");
  context_->progress = &*progress_;
}

void TrainingRun::loop() {
  if (progress_) progress_->start(static_cast<std::uint64_t>(step_));
  while (step_ < total_steps_ && !stop_.reached()) {
    // A signal may reach ranks at different times, or only one rank. All stop after the same step.
    interrupted_ = ranks_.any(InterruptScope::requested());
    if (interrupted_) break;
    one_step();
    follow_output();
    end_where_updates_fail();
    end_where_logs_fail();
    at_checkpoint([&] { background_.poll(); });
    if (progress_) progress_->update(static_cast<std::uint64_t>(step_));
    const bool last = step_ == total_steps_;
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    if (last || due(job_.trainer.test_freq)) validate();
    if (last || stop_.reached() || due(job_.trainer.save_freq) || best_.step() == step_)
      at_checkpoint([&] { save(/*goes_on=*/!last && !stop_.reached()); });
  }
  save_last();
}

// The output folder may have been moved or removed during the step.
void TrainingRun::follow_output() {
  if (output_is_lost()) rescue();
}

bool TrainingRun::output_is_lost() {
  std::vector<double> changes = {output_.is_there() ? 0.0 : 1.0, 0};
  changes[1] = ranks_.first() && output_.path() != shared_output_ ? 1 : 0;
  ranks_.max(changes);
  if (changes[1] > 0) share_output();
  return changes[0] > 0;
}

void TrainingRun::share_output() {
  const std::string own = ranks_.first() ? output_.path().string() : "";
  const std::vector<double> letters = ranks_.join(std::vector<double>(own.begin(), own.end()));
  std::string path;
  for (const double letter : letters) path += static_cast<char>(letter);
  shared_output_ = path;
  output_.follow(shared_output_);
  files_->moved_to(shared_output_);
}

void TrainingRun::one_step() {
  Metrics metrics;
  {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();  // of all threads
    metrics = trainer_->train_step(step_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    note_processor_share(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC,
                         seconds.count() - value_or_zero(metrics, "timing_s/reward"));
    metrics["timing_s/step"] = metrics["perf/time_per_step"] = seconds.count();
    if (metrics.contains("perf/total_num_tokens")) {
      metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds.count();
    }
  }
  const std::int64_t epoch = step_ / trainer_->steps_per_epoch();
  metrics["training/epoch"] = static_cast<double>(epoch);
  ++step_;
  metrics["training/global_step"] = static_cast<double>(step_);
  if (save_seconds_ > 0) metrics["timing_s/save_checkpoint"] = std::exchange(save_seconds_, 0);
  write_logs([&] { files_->write_phases(runtime_->take_measurements(), step_, &metrics); });
  // The maximum over ranks, because the limit applies to each.
  std::vector<double> memory = {runtime_->peak_allocated().gib(), runtime_->peak().gib(),
                                resident_memory().gib()};
  ranks_.max(memory);
  metrics["perf/max_memory_allocated_gb"] = memory[0];
  metrics["perf/max_memory_reserved_gb"] = memory[1];
  metrics["perf/cpu_memory_used_gb"] = memory[2];
  for (const auto& [name, value] : metrics)
    if (name.ends_with(kSkippedInARow)) skipped_in_a_row_ = std::max(skipped_in_a_row_, value);
  write_logs([&] {
    files_->write_step(step_, metrics);
    files_->write_rollouts(step_, trainer_->take_rollouts());
  });
}

// A failure is reported by end_where_logs_fail(), which saves the steps first.
void TrainingRun::write_logs(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& e) {
    log_failure_ = e.status();
  }
}

void TrainingRun::end_where_logs_fail() {
  const bool own = !log_failure_.ok();
  if (!ranks_.any(own)) return;
  save_last();
  throw parallel::CollectiveError(
      stopped(own ? log_failure_ : Status(ErrorCode::kIo, "another rank cannot write its logs"),
              saved_steps()),
      own);
}

// Skipped updates keep the weights of the last good update.
void TrainingRun::end_where_updates_fail() {
  if (skipped_in_a_row_ < kMostSkippedInARow) {
    skipped_in_a_row_ = 0;
    return;
  }
  save_last();
  throw parallel::CollectiveError(
      stopped({ErrorCode::kInternal,
               format("The last {} updates of a model were skipped, because the norms of their "
                      "gradients were not finite. Lower the learning rate, or train in float32",
                      skipped_in_a_row_)},
              format("The weights are those of the last good update. They are saved in {}",
                     train::checkpoint_folder(output_.path(), step_).string())),
      ranks_.first());
}

void TrainingRun::note_processor_share(double cpu_seconds, double seconds) {
  if (device_.target.cuda) return;
  if (const auto warning = processor_share_.note(cpu_seconds, seconds)) log::warn(*warning);
}

void TrainingRun::validate() {
  if (!trainer_->can_validate() || validated_ == step_) return;
  const auto start = std::chrono::steady_clock::now();
  const Validation result = trainer_->validate(step_);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  validated_ = step_;
  note_validation(result.metrics);
  write_logs([&] {
    files_->write_phases(runtime_->take_measurements(), step_, nullptr);
    files_->write_validation(step_, result, seconds.count());
  });
}

void TrainingRun::note_validation(const Metrics& metrics) {
  if (best_.offer(step_, metrics)) {
    const std::optional<double> start = best_.better_start();
    log::info(format("Step {} has the best checkpoint so far: {} {:.4g}{}", step_,
                     job_.trainer.best_metric, best_.value(),
                     start ? format("; before the first step it was {:.4g}", *start) : ""));
  }
  stop_.note(step_, metrics);
}

train::HostCopies* TrainingRun::copies() {
  if (!copies_fit_) copies_.reset();
  if (!copies_fit_ || !plan_.copies_checkpoints()) return nullptr;
  if (!copies_) copies_.emplace(runtime_->arena());
  return &*copies_;
}

void TrainingRun::note_without_copy(const Status& why) {
  if (why.ok()) return;
  copies_fit_ = false;
  if (ranks_.first())
    log::warn(format("Training waits while checkpoints are written: {}", why.message()));
}

void TrainingRun::save(bool goes_on) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (const Status kept = files_->sync(); !kept.ok())
    log::warn(format("Logs are not complete: {}", kept.message()));
  saved_ = step_;
  if (progress_) progress_->begin_part("checkpoint");
  background_.wait();
  const double waited = seconds();
  std::unique_ptr<train::CheckpointWriter> writer;  // on the first rank
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first())
      writer = std::make_unique<train::CheckpointWriter>(output_.stable_path(), step_);
  });
  train::SavedFiles files(ranks_, goes_on ? copies() : nullptr);
  train::with_readable_errors(writer.get(), [&] {
    trainer_->save(writer ? writer->folder() : fs::path(), files);
    parallel::run_collectively(ranks_, [&] {
      if (writer)
        write_run_state(writer->folder(), step_, job_, identity_, data_->train, best_, stop_);
    });
  });
  note_without_copy(files.without_copy());
  const bool copied = files.copied();
  background_.start(std::move(files), std::move(writer),
                    {job_.trainer.max_ckpt_to_keep, best_.step(),
                     [this](const fs::path& folder) { return is_own(folder) == true; }});
  save_seconds_ += seconds();
  if (!ranks_.first()) return;
  const std::string folder = train::checkpoint_folder(output_.path(), step_).string();
  const std::string before =
      waited < kShownWait ? "" : format(", after {:.1f} s for the one before", waited);
  log::info(copied ? format("copied the models in {:.1f} s; {} is written in the background{}",
                            seconds() - waited, folder, before)
                   : format("wrote {} in {:.1f} s; it goes to the disk in the background{}", folder,
                            seconds() - waited, before));
}

void TrainingRun::save_last() {
  at_checkpoint([&] {
    if (saved_ != step_) save(/*goes_on=*/false);
    background_.wait();
  });
}

void TrainingRun::at_checkpoint(const std::function<void()>& work) {
  const auto stopped_here = [&](const Status& why) { return stopped(why, what_is_left()); };
  try {
    work();
  } catch (const parallel::CollectiveError& e) {
    if (saved_ != kRescuing && output_is_lost()) rescue();
    throw parallel::CollectiveError(stopped_here(e.status()), e.mine());
  } catch (const Error& e) {
    if (ranks_.alone() && saved_ != kRescuing && !output_.is_there()) rescue();
    throw Error(stopped_here(e.status()));
  }
}

std::string TrainingRun::what_is_left() {
  (void)output_.is_there();  // it may have been moved
  try {
    const auto found = train::find_checkpoint(output_.path(), "auto", {}, check_whole);
    if (!found) return "There is no checkpoint; the same command starts again";
    return format("The newest checkpoint is {}; {}", found->folder.string(), how_to_resume());
  } catch (const Error& e) {
    return e.what();
  }
}

std::string TrainingRun::how_to_resume() const {
  const std::string change = output_.change_of_key();
  return change.empty() ? "the same command resumes from there"
                        : format("to resume from there, set {}", change);
}

std::string TrainingRun::saved_steps(std::string_view but) const {
  return format("The steps are saved in {}{}; {}",
                train::checkpoint_folder(output_.path(), step_).string(), but, how_to_resume());
}

void TrainingRun::finish_save() {
  // The run reports its own failure.
  if (const Status ended = background_.finish_here(); !ended.ok()) log::debug(ended.message());
}

void TrainingRun::rescue() {
  finish_save();  // may fail because of the lost folder
  std::string loss = "The output folder is lost";
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first()) loss = output_.replace();
  });
  share_output();
  saved_ = kRescuing;
  save_last();
  throw parallel::CollectiveError(
      stopped({ErrorCode::kIo, std::move(loss)}, saved_steps(" without logs")), ranks_.first());
}

void TrainingRun::keep_steps_before(const StepFailure& failure) {
  if (step_ > 0) {
    follow_output();
    save_last();
  }
  const std::string kept = step_ > 0 ? saved_steps() : "The same command starts again";
  throw StepFailure(stopped(failure.status(), kept), failure.mine());
}

Status TrainingRun::stopped(const Status& why, const std::string& kept) const {
  return {while_running(why).code(),
          format("Stopped after {} of {} steps: {}. {}", step_, total_steps_, why.message(), kept)};
}

void TrainingRun::finish() {
  parallel::run_collectively(ranks_, [&] {
    if (const Status kept = files_->sync(); !kept.ok())
      throw Error(stopped(kept, saved_steps(", logs are not complete")));
  });
  // The models are saved, and other ranks wait below.
  if (recorder_)
    if (const Status closed = recorder_->close(); !closed.ok())
      log::warn(format("No whole trace: {}", closed.message()));
  const std::vector<double> peaks = ranks_.join({static_cast<double>(runtime_->peak().count())});
  if (!ranks_.first()) return;
  // Over the ranks with this rank's plan.
  const double peak = *std::max_element(peaks.begin(), peaks.begin() + kinds_.front().count);
  files_->conclude(Bytes(static_cast<std::uint64_t>(peak)));
  if (stop_.reached()) print(format("stopped        {}\n", stop_.text()));
  if (best_.step())
    print(format("best           {} {:.4g} at step {}: {}\n", job_.trainer.best_metric,
                 best_.value(), *best_.step(), (output_.path() / "best").string()));
  if (const auto start = best_.better_start())
    print(format("start          {} {:.4g} before the first step: better than every checkpoint\n",
                 job_.trainer.best_metric, *start));
}

}  // namespace neap::rlhf
