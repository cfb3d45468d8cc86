#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/file.h"

namespace neap {
namespace {

std::atomic<pid_t> known{0};

}  // namespace

pid_t current_process() {
  if (const pid_t process = known.load(std::memory_order_relaxed); process != 0) return process;
  static const int kWatched =
      ::pthread_atfork(nullptr, nullptr, [] { known.store(0, std::memory_order_relaxed); });
  const pid_t process = ::getpid();
  // Without the fork handler a forked child would get its parent's id, so ask the system at each
  // call.
  if (kWatched == 0) known.store(process, std::memory_order_relaxed);
  return process;
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Bytes resident_memory() {
  const auto status = read_file("/proc/self/status", 1_MiB);
  if (!status.ok()) return {};
  const std::size_t at = status->find("VmRSS:");
  if (at == std::string::npos) return {};
  return Bytes(std::strtoull(status->c_str() + at + 6, nullptr, 10) << 10);
}

Bytes machine_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return {};
  return Bytes(static_cast<std::uint64_t>(pages)) * static_cast<std::uint64_t>(page);
}

}  // namespace neap
