#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace neap {
namespace {

std::atomic<pid_t> known{0};

}  // namespace

pid_t current_process() {
  if (const pid_t process = known.load(std::memory_order_relaxed); process != 0) return process;
  static const int kWatched =
      ::pthread_atfork(nullptr, nullptr, [] { known.store(0, std::memory_order_relaxed); });
  const pid_t process = ::getpid();
  // Unwatched, a child would take itself for its parent: then the system is asked each time.
  if (kWatched == 0) known.store(process, std::memory_order_relaxed);
  return process;
}

}  // namespace neap
