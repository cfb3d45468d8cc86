// Runs work in the background that no caller waits for, such as closing large files.
//
// Threads   any. One job runs at a time; run() waits for the previous job.
//
// Failure   runs the job inline if no thread can be created.
#pragma once

#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace neap::arena {

class BackgroundWorker {
 public:
  BackgroundWorker() = default;
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;
  ~BackgroundWorker() { wait(); }

  void run(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = std::thread(job);
    } catch (const std::system_error&) {
      job();
    }
  }
  /// Returns when every job submitted so far is done.
  void wait() {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::thread thread_;
};

}  // namespace neap::arena
