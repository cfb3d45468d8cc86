#include "train/background_save.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"
#include "parallel/run_collectively.h"
#include "weights/tensor_pieces.h"

namespace neap::train {
namespace {

constexpr int kNice = 10;

// For this thread and those that it starts. Training comes first.
void lower_priority() {
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice) != 0)
    log::debug("The thread that writes checkpoints keeps its priority");
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  if (!running_.valid()) return;
  const Status ended = parallel::status_of([&] { running_.get(); });
  if (!ended.ok()) log::error(format("The last checkpoint was not saved: {}", ended.message()));
}

void BackgroundSave::start(SavedFiles files, std::unique_ptr<CheckpointWriter> writer,
                           Retention keep) {
  wait();
  save_ = std::make_unique<Save>(Save{std::move(writer), std::move(keep), std::move(files)});
  try {
    // Ranks share results between steps only: a kill before the next steps would lose the files.
    while (!ranks_.alone() && save_->stage + 1 < SavedFiles::kStages) {
      parallel::run_collectively(ranks_, [&] { run_stage(*save_); });
      save_->files.share();
    }
  } catch (...) {
    save_.reset();
    throw;
  }
  launch();
}

void BackgroundSave::run_stage(Save& save) {
  try {
    save.files.run(save.stage, std::max<std::size_t>(weights::all_threads() / 2, 1));
  } catch (const Error& e) {
    throw Error(save.writer ? save.writer->readable(e.status()) : e.status());
  }
  if (++save.stage == SavedFiles::kStages && save.writer) save.writer->commit(save.keep);
}

void BackgroundSave::launch() {
  running_ = std::async(std::launch::async, [&save = *save_, alone = ranks_.alone()] {
    lower_priority();
    run_stage(save);
    while (alone && save.stage < SavedFiles::kStages) {
      save.files.share();
      run_stage(save);
    }
  });
}

void BackgroundSave::advance(bool waits) {
  if (!save_) return;
  if (waits) running_.wait();
  const bool busy = running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (ranks_.any(busy)) return;
  try {
    parallel::run_collectively(ranks_, [&] { running_.get(); });
    if (save_->stage < SavedFiles::kStages) {
      save_->files.share();
      return launch();
    }
  } catch (...) {
    save_.reset();
    throw;
  }
  save_.reset();
}

void BackgroundSave::wait() {
  while (save_) advance(/*waits=*/true);
}

}  // namespace neap::train
