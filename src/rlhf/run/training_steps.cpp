#include "rlhf/run/training_steps.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process.h"
#include "parallel/run_collectively.h"
#include "rlhf/trainer/model_update.h"
#include "train/checkpoint.h"

namespace neap::rlhf {
namespace {

// A run ends if this many updates of a model in a row were skipped, because the next ones would
// also be skipped.
constexpr double kMostSkippedInARow = 10;

double value_or_zero(const Metrics& metrics, const char* name) {
  const auto at = metrics.find(name);
  return at == metrics.end() ? 0 : at->second;
}

}  // namespace

std::unique_ptr<RunOutput> open_output(RunStart& start, PreparedRun& prepared) {
  std::unique_ptr<RunOutput> files;
  parallel::run_collectively(start.ranks, [&] {
    // A killed run can leave results without a checkpoint. With "auto" they are overwritten.
    std::optional<std::int64_t> from;
    if (start.resume.found) {
      from = start.resume.step();
    } else if (start.job.trainer.resume_mode == "auto") {
      from = -1;
    }
    remove_temporary_files(start.folders.own);
    files = std::make_unique<RunOutput>(start.job, start.folders, prepared.plan(),
                                        start.total_steps, from);
    prepared.trace().keep();
    // Repairs links after a kill between a checkpoint and its links, or when resuming from an older
    // checkpoint.
    if (start.ranks.first() && !start.job.trainer.best_metric.empty())
      (void)train::point_best(start.output.path(), start.position.best.step());
  });
  return files;
}

Outcome TrainingSteps::run() {
  files_.write_phases(runtime_.take_measurements(), position_.step, nullptr);
  show_progress();
  run_steps();
  checkpoints_.follow_output();  // it may have moved since the last step
  if (progress_) progress_->finish();
  if (interrupted_ && position_.step < start_.total_steps) {
    if (start_.ranks.first())
      log::warn(format("Interrupted after step {} of {}. {}.", position_.step, start_.total_steps,
                       checkpoints_.saved_steps()));
    return Outcome::kInterrupted;
  }
  conclude();
  checkpoints_.follow_output();  // or since the line above
  return Outcome::kDone;
}

void TrainingSteps::run_steps() {
  try {
    if (!start_.resume.found) validate();
    // Launchers also send the signal after a rank was killed. Then no rank can finish its step.
    interrupts_.emplace(
        start_.ranks.alone()
            ? "\nStopping after this step, with a checkpoint. Once more to stop at once, without.\n"
            : "\nStopping after this step. If all ranks reach its end, a checkpoint is saved. Once "
              "more to stop at once, without.\n");
    loop();
  } catch (const StepInterrupted&) {
    interrupted_ = true;
    checkpoints_.save_last();
  } catch (const StepFailure& e) {
    keep_steps_before(e);
  } catch (const parallel::CollectiveError&) {  // every rank is here
    checkpoints_.finish();
    throw;
  }
}

void TrainingSteps::show_progress() {
  if (!start_.ranks.first()) return;
  progress_.emplace(std::string(to_string(start_.job.task)),
                    static_cast<std::uint64_t>(start_.total_steps), "steps");
  prepared_.live().context().progress = &*progress_;
}

void TrainingSteps::loop() {
  const std::int64_t total = start_.total_steps;
  const std::int64_t& step = position_.step;
  if (progress_) progress_->start(static_cast<std::uint64_t>(step));
  while (step < total && !position_.stop.reached()) {
    // A signal may reach ranks at different times, or only one rank. All stop after the same step.
    interrupted_ = start_.ranks.any(InterruptScope::requested());
    if (interrupted_) break;
    one_step();
    checkpoints_.follow_output();
    end_where_updates_fail();
    end_where_logs_fail();
    checkpoints_.poll();
    if (progress_) progress_->update(static_cast<std::uint64_t>(step));
    const bool last = step == total;
    const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    if (last || due(start_.job.trainer.test_freq)) validate();
    if (last || position_.stop.reached() || due(start_.job.trainer.save_freq) ||
        position_.best.step() == step)
      checkpoints_.save(/*goes_on=*/!last && !position_.stop.reached());
  }
  checkpoints_.save_last();
}

void TrainingSteps::keep_steps_before(const StepFailure& failure) {
  if (position_.step > 0) {
    checkpoints_.follow_output();
    checkpoints_.save_last();
  }
  const std::string kept =
      position_.step > 0 ? checkpoints_.saved_steps() : "The same command starts again";
  throw StepFailure(checkpoints_.stopped(failure.status(), kept), failure.mine());
}

Metrics TrainingSteps::timed_step() {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();  // of all threads
  Metrics metrics = prepared_.trainer().train_step(position_.step);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  note_processor_share(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC,
                       seconds.count() - value_or_zero(metrics, "timing_s/reward"));
  metrics["timing_s/step"] = metrics["perf/time_per_step"] = seconds.count();
  if (metrics.contains("perf/total_num_tokens"))
    metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds.count();
  return metrics;
}

void TrainingSteps::one_step() {
  Metrics metrics = timed_step();
  const std::int64_t epoch = position_.step / prepared_.trainer().steps_per_epoch();
  metrics["training/epoch"] = static_cast<double>(epoch);
  const std::int64_t step = ++position_.step;
  metrics["training/global_step"] = static_cast<double>(step);
  if (const double seconds = checkpoints_.take_seconds(); seconds > 0)
    metrics["timing_s/save_checkpoint"] = seconds;
  write_logs([&] { files_.write_phases(runtime_.take_measurements(), step, &metrics); });
  add_memory(metrics);
  for (const auto& [name, value] : metrics)
    if (name.ends_with(kSkippedInARow)) skipped_in_a_row_ = std::max(skipped_in_a_row_, value);
  write_logs([&] {
    files_.write_step(step, metrics);
    files_.write_rollouts(step, prepared_.trainer().take_rollouts());
  });
}

// The maximum over ranks, because the limit applies to each.
void TrainingSteps::add_memory(Metrics& metrics) {
  std::vector<double> memory = {runtime_.peak_allocated().gib(), runtime_.peak().gib(),
                                resident_memory().gib()};
  start_.ranks.max(memory);
  metrics["perf/max_memory_allocated_gb"] = memory[0];
  metrics["perf/max_memory_reserved_gb"] = memory[1];
  metrics["perf/cpu_memory_used_gb"] = memory[2];
}

// A failure is reported by end_where_logs_fail(), which saves the steps first.
void TrainingSteps::write_logs(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& e) {
    log_failure_ = e.status();
  }
}

void TrainingSteps::end_where_logs_fail() {
  const bool own = !log_failure_.ok();
  if (!start_.ranks.any(own)) return;
  checkpoints_.save_last();
  throw parallel::CollectiveError(
      checkpoints_.stopped(
          own ? log_failure_ : Status(ErrorCode::kIo, "another rank cannot write its logs"),
          checkpoints_.saved_steps()),
      own);
}

// Skipped updates keep the weights of the last good update.
void TrainingSteps::end_where_updates_fail() {
  if (skipped_in_a_row_ < kMostSkippedInARow) {
    skipped_in_a_row_ = 0;
    return;
  }
  checkpoints_.save_last();
  const std::filesystem::path folder =
      train::checkpoint_folder(start_.output.path(), position_.step);
  throw parallel::CollectiveError(
      checkpoints_.stopped(
          {ErrorCode::kInternal,
           format("The last {} updates of a model were skipped, because the norms of their "
                  "gradients were not finite. Lower the learning rate, or train in float32",
                  skipped_in_a_row_)},
          format("The weights are those of the last good update. They are saved in {}",
                 folder.string())),
      start_.ranks.first());
}

void TrainingSteps::note_processor_share(double cpu_seconds, double seconds) {
  if (start_.device.target.cuda) return;
  if (const auto warning = processor_share_.note(cpu_seconds, seconds)) log::warn(*warning);
}

void TrainingSteps::validate() {
  if (!prepared_.trainer().can_validate() || validated_ == position_.step) return;
  const auto start = std::chrono::steady_clock::now();
  const Validation result = prepared_.trainer().validate(position_.step);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  validated_ = position_.step;
  note_validation(result.metrics);
  write_logs([&] {
    files_.write_phases(runtime_.take_measurements(), position_.step, nullptr);
    files_.write_validation(position_.step, result, seconds.count());
  });
}

void TrainingSteps::note_validation(const Metrics& metrics) {
  if (position_.best.offer(position_.step, metrics)) {
    const std::optional<double> start = position_.best.better_start();
    log::info(format("Step {} has the best checkpoint so far: {} {:.4g}{}", position_.step,
                     start_.job.trainer.best_metric, position_.best.value(),
                     start ? format("; before the first step it was {:.4g}", *start) : ""));
  }
  position_.stop.note(position_.step, metrics);
}

void TrainingSteps::conclude() {
  parallel::run_collectively(start_.ranks, [&] {
    if (const Status kept = files_.sync(); !kept.ok())
      throw Error(checkpoints_.stopped(kept, checkpoints_.saved_steps(", logs are not complete")));
  });
  prepared_.trace().close();  // the models are saved, and other ranks wait below
  const std::vector<double> peaks =
      start_.ranks.join({static_cast<double>(runtime_.peak().count())});
  if (!start_.ranks.first()) return;
  // Over the ranks with this rank's plan.
  const double peak = *std::max_element(peaks.begin(), peaks.begin() + start_.kinds.front().count);
  files_.conclude(Bytes(static_cast<std::uint64_t>(peak)));
  print_targets();
}

void TrainingSteps::print_targets() const {
  const BestCheckpoint& best = position_.best;
  const std::string& metric = start_.job.trainer.best_metric;
  if (position_.stop.reached()) print(format("stopped        {}\n", position_.stop.text()));
  if (best.step())
    print(format("best           {} {:.4g} at step {}: {}\n", metric, best.value(), *best.step(),
                 (start_.output.path() / "best").string()));
  if (const auto start = best.better_start())
    print(format("start          {} {:.4g} before the first step: better than every checkpoint\n",
                 metric, *start));
}

}  // namespace neap::rlhf
