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

void with_readable_errors(const CheckpointWriter* writer, const std::function<void()>& work) {
  const auto readable = [&](const Status& why) {
    return writer == nullptr ? why : writer->readable(why);
  };
  try {
    work();
  } catch (const parallel::CollectiveError& e) {
    throw parallel::CollectiveError(readable(e.status()), e.mine());
  } catch (const Error& e) {
    throw Error(readable(e.status()));
  }
}

BackgroundSave::~BackgroundSave() {
  if (!running_.valid()) return;
  const Status ended = parallel::status_of([&] { running_.get(); });
  if (!ended.ok()) log::error(format("The last checkpoint was not saved: {}", ended.message()));
}

void BackgroundSave::start(SavedFiles files, std::unique_ptr<CheckpointWriter> writer,
                           Retention keep) {
  wait();
  auto save = std::make_unique<Save>(Save{std::move(writer), std::move(keep), std::move(files)});
  if (!ranks_.alone()) commit_files(*save, weights::all_threads());
  save_ = std::move(save);
  running_ = std::async(std::launch::async, [this, &save = *save_] {
    lower_priority();
    if (ranks_.alone()) commit_files(save, std::max<std::size_t>(weights::all_threads() / 2, 1));
    if (save.writer) save.writer->commit(save.keep);
  });
}

void BackgroundSave::commit_files(Save& save, std::size_t threads) {
  with_readable_errors(save.writer.get(), [&] { save.files.commit(threads); });
}

void BackgroundSave::advance(bool waits) {
  if (!save_) return;
  if (waits) running_.wait();
  const bool busy = running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (ranks_.any(busy)) return;
  const std::unique_ptr<Save> ended = std::move(save_);
  parallel::run_collectively(ranks_, [&] { running_.get(); });
}

}  // namespace neap::train
