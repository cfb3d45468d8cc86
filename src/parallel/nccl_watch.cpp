#include "parallel/nccl_watch.h"

#include <utility>

#include "base/format.h"
#include "parallel/timeouts.h"

namespace neap::parallel {

NcclWatch::NcclWatch(Rendezvous& rendezvous, int rank, double timeout_seconds,
                     std::function<void()> abort)
    : rendezvous_(rendezvous),
      rank_(rank),
      timeout_(timeout_seconds),
      abort_(std::move(abort)),
      thread_([this] { loop(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NcclWatch::begin(const char* call) {
  const std::lock_guard lock(mutex_);
  call_ = call;
  waits_ = true;
  ++calls_;
  clock_.restart();
}

void NcclWatch::end() {
  const std::lock_guard lock(mutex_);
  waits_ = false;
}

Status NcclWatch::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void NcclWatch::loop() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !gave_up_) {
    wake_.wait_for(lock, std::chrono::seconds(1));
    if (!waits_ || ending_ || clock_.look() < std::chrono::seconds(1)) continue;
    const std::int64_t call = calls_;
    lock.unlock();
    const auto failure = rendezvous_.failure();
    const std::int64_t signs = rendezvous_.signs_of_life();
    lock.lock();
    if (!waits_ || calls_ != call) continue;  // the call has ended meanwhile
    if (std::exchange(signs_, signs) != signs) clock_.restart();
    const WaitClock::Seconds waited = clock_.look();
    if (failure) {
      reason_ = Status(ErrorCode::kIo, format("{}; rank {} ends too", *failure, rank_));
    } else if (waited.count() > timeout_) {
      reason_ = wait_timed_out(rank_, waited.count(), call_, {});
    } else {
      continue;
    }
    gave_up_ = true;
    lock.unlock();
    abort_();
    lock.lock();
  }
}

}  // namespace neap::parallel
