// Work that nobody waits for, beside the caller: giving files and host memory back to the system.
//
// Threads   any. One job at a time; the next waits for it.
// Failure   without a thread to be had the job runs here.
#pragma once

#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace neap::arena {

class Beside {
 public:
  Beside() = default;
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside() { wait(); }

  void run(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = std::thread(job);
    } catch (const std::system_error&) {
      job();
    }
  }
  /// Until what was asked for so far is done.
  void wait() {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::thread thread_;
};

}  // namespace neap::arena
