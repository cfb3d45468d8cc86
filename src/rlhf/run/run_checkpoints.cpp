#include "rlhf/run/run_checkpoints.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "parallel/run_collectively.h"
#include "rlhf/trainer/run_state.h"
#include "train/checkpoint.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr double kShownWait = 0.1;  // seconds that are worth a word

}  // namespace

double RunCheckpoints::take_seconds() {
  return std::exchange(seconds_, 0);
}

void RunCheckpoints::follow_output() {
  if (output_is_lost()) rescue();
}

bool RunCheckpoints::output_is_lost() {
  parallel::Communicator& ranks = start_.ranks;
  std::vector<double> changes = {start_.output.is_there() ? 0.0 : 1.0, 0};
  changes[1] = ranks.first() && start_.output.path() != shared_output_ ? 1 : 0;
  ranks.max(changes);
  if (changes[1] > 0) share_output();
  return changes[0] > 0;
}

void RunCheckpoints::share_output() {
  shared_output_ = start_.ranks.broadcast(start_.output.path().string(), 0);
  start_.output.follow(shared_output_);
  files_.moved_to(shared_output_);
}

train::HostCopies* RunCheckpoints::copies() {
  if (!copies_fit_) copies_.reset();
  if (!copies_fit_ || !prepared_.plan().copies_checkpoints()) return nullptr;
  if (!copies_) copies_.emplace(prepared_.live().runtime().arena());
  return &*copies_;
}

void RunCheckpoints::note_without_copy(const Status& why) {
  if (why.ok()) return;
  copies_fit_ = false;
  if (start_.ranks.first())
    log::warn(format("Training waits while checkpoints are written: {}", why.message()));
}

void RunCheckpoints::save(bool goes_on) {
  at_checkpoint([&] { save_now(goes_on); });
}

void RunCheckpoints::save_now(bool goes_on) {
  parallel::Communicator& ranks = start_.ranks;
  const std::int64_t step = start_.position.step;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (const Status kept = files_.sync(); !kept.ok())
    log::warn(format("Logs are not complete: {}", kept.message()));
  saved_ = step;
  if (Progress* progress = prepared_.live().context().progress) progress->begin_part("checkpoint");
  background_.wait();
  const double waited = seconds();
  std::unique_ptr<train::CheckpointWriter> writer;  // on the first rank
  parallel::run_collectively(ranks, [&] {
    if (ranks.first())
      writer = std::make_unique<train::CheckpointWriter>(start_.output.stable_path(), step);
  });
  train::SavedFiles files(ranks, goes_on ? copies() : nullptr);
  train::with_readable_errors(writer.get(), [&] {
    prepared_.trainer().save(writer ? writer->folder() : fs::path(), files);
    parallel::run_collectively(ranks, [&] {
      if (writer)
        write_run_state(writer->folder(), step, start_.job, start_.resume.identity,
                        prepared_.rows(), start_.position.best, start_.position.stop);
    });
  });
  note_without_copy(files.without_copy());
  const bool copied = files.copied();
  background_.start(
      std::move(files), std::move(writer),
      {start_.job.trainer.max_ckpt_to_keep, start_.position.best.step(),
       [this](const fs::path& folder) { return start_.resume.is_own(folder) == true; }});
  seconds_ += seconds();
  if (!ranks.first()) return;
  const std::string folder = train::checkpoint_folder(start_.output.path(), step).string();
  const std::string before =
      waited < kShownWait ? "" : format(", after {:.1f} s for the one before", waited);
  log::info(copied ? format("copied the models in {:.1f} s; {} is written in the background{}",
                            seconds() - waited, folder, before)
                   : format("wrote {} in {:.1f} s; it goes to the disk in the background{}", folder,
                            seconds() - waited, before));
}

void RunCheckpoints::save_last() {
  at_checkpoint([&] {
    if (saved_ != start_.position.step) save_now(/*goes_on=*/false);
    background_.wait();
  });
}

void RunCheckpoints::poll() {
  at_checkpoint([&] { background_.poll(); });
}

void RunCheckpoints::at_checkpoint(const std::function<void()>& work) {
  const auto stopped_here = [&](const Status& why) { return stopped(why, what_is_left()); };
  try {
    work();
  } catch (const parallel::CollectiveError& e) {
    if (!rescuing_ && output_is_lost()) rescue();
    throw parallel::CollectiveError(stopped_here(e.status()), e.mine());
  } catch (const Error& e) {
    if (start_.ranks.alone() && !rescuing_ && !start_.output.is_there()) rescue();
    throw Error(stopped_here(e.status()));
  }
}

std::string RunCheckpoints::what_is_left() {
  (void)start_.output.is_there();  // it may have been moved
  try {
    const auto found = train::find_checkpoint(start_.output.path(), "auto", {}, check_whole);
    if (!found) return "There is no checkpoint; the same command starts again";
    return format("The newest checkpoint is {}; {}", found->folder.string(), how_to_resume());
  } catch (const Error& e) {
    return e.what();
  }
}

std::string RunCheckpoints::how_to_resume() const {
  const std::string change = start_.output.change_of_key();
  return change.empty() ? "the same command resumes from there"
                        : format("to resume from there, set {}", change);
}

std::string RunCheckpoints::saved_steps(std::string_view but) const {
  return format("The steps are saved in {}{}; {}",
                train::checkpoint_folder(start_.output.path(), start_.position.step).string(), but,
                how_to_resume());
}

void RunCheckpoints::finish() {
  // The run reports its own failure.
  if (const Status ended = background_.finish_here(); !ended.ok()) log::debug(ended.message());
}

void RunCheckpoints::rescue() {
  finish();  // may fail because of the lost folder
  std::string loss = "The output folder is lost";
  parallel::run_collectively(start_.ranks, [&] {
    if (start_.ranks.first()) loss = start_.output.replace();
  });
  share_output();
  rescuing_ = true;
  saved_ = -1;
  save_last();
  throw parallel::CollectiveError(
      stopped({ErrorCode::kIo, std::move(loss)}, saved_steps(" without logs")),
      start_.ranks.first());
}

Status RunCheckpoints::stopped(const Status& why, const std::string& kept) const {
  return {while_running(why).code(),
          format("Stopped after {} of {} steps: {}. {}", start_.position.step, start_.total_steps,
                 why.message(), kept)};
}

}  // namespace neap::rlhf
