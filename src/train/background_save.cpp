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
  if (const Status ended = finish_here(); !ended.ok())
    log::error(format("The last checkpoint was not saved: {}", ended.message()));
}

void BackgroundSave::start(SavedFiles files, std::unique_ptr<CheckpointWriter> writer,
                           Retention keep) {
  wait();
  const auto commit_files = [](Save& save, std::size_t threads) {
    with_readable_errors(save.writer.get(), [&] { save.files.commit(threads); });
  };
  Save all{std::move(writer), std::move(keep), std::move(files)};
  const bool alone = ranks_.alone();
  if (!alone) commit_files(all, weights::all_threads());
  running_ = std::async(std::launch::async, [save = std::move(all), alone, commit_files]() mutable {
    lower_priority();
    if (alone) commit_files(save, std::max<std::size_t>(weights::all_threads() / 2, 1));
    if (save.writer) save.writer->commit(save.keep);
  });
}

// One collective, whether or not the thread has ended: the number of calls does not depend on time.
void BackgroundSave::advance(bool waits) {
  parallel::run_collectively(ranks_, [&] {
    if (!running_.valid()) return;
    const bool ended = running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (waits || ended) running_.get();
  });
}

Status BackgroundSave::finish_here() {
  return parallel::status_of([&] {
    if (running_.valid()) running_.get();
  });
}

}  // namespace neap::train
