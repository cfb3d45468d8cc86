// Threads that read and write files: a disk is faster with many transfers in flight.
//
// Threads   any. Internal to arena/.
//
// Failure   if no thread can be created, jobs run in the caller's thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::arena {

/// A disk is faster with many small transfers than with a few large ones.
constexpr Bytes kDiskPiece = 1_MiB;

/// Starts jobs in order. The destructor waits for all of them.
class DiskWorkers {
  static constexpr std::size_t kMost = 32;  // reads or writes in flight

 public:
  /// Creates as many threads as this number of jobs can use.
  explicit DiskWorkers(std::size_t jobs) {
    for (std::size_t i = 0; i < std::min(kMost, jobs); ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;
      }
    }
  }
  DiskWorkers(const DiskWorkers&) = delete;
  DiskWorkers& operator=(const DiskWorkers&) = delete;
  ~DiskWorkers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  std::future<Status> run(std::function<Status()> job) {
    std::packaged_task<Status()> task(std::move(job));
    auto result = task.get_future();
    if (threads_.empty()) {
      task();
      return result;
    }
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    wake_.notify_one();
    return result;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<Status()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace neap::arena
