#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace neap {
namespace {

constexpr std::int64_t kSameEventNs = 1'000'000'000;
std::atomic<std::int64_t> g_first_ns{0};  // when the first signal came; 0: none yet
std::atomic<const char*> g_notice{nullptr};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler uses it");

void on_signal(int number) {
  const int error = errno;
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ns = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec + 1;
  std::int64_t first = 0;
  if (g_first_ns.compare_exchange_strong(first, now_ns)) {
    const char* const notice = g_notice.load();
    // Nothing can be done about a closed stderr here.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, notice, ::strlen(notice));
  } else if (number != SIGHUP && now_ns - first >= kSameEventNs) {
    (void)::signal(number, SIG_DFL);
    (void)::raise(number);  // delivered when this returns
  }
  errno = error;
}

void catch_signal(int number, struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  (void)::sigaction(number, &action, &before);
}

}  // namespace

InterruptScope::InterruptScope(const char* notice, InterruptSignals signals) : signals_(signals) {
  g_notice = notice;
  g_first_ns = 0;
  catch_signal(SIGINT, interrupt_);
  if (signals == InterruptSignals::kInterrupt) return;
  catch_signal(SIGTERM, terminate_);
  (void)::sigaction(SIGHUP, nullptr, &hang_up_);
  if (hang_up_.sa_handler != SIG_IGN) catch_signal(SIGHUP, hang_up_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  (void)::sigaction(SIGPIPE, &ignore, &pipe_);
}

InterruptScope::~InterruptScope() {
  (void)::sigaction(SIGINT, &interrupt_, nullptr);
  if (signals_ == InterruptSignals::kInterrupt) return;
  (void)::sigaction(SIGTERM, &terminate_, nullptr);
  (void)::sigaction(SIGHUP, &hang_up_, nullptr);
  (void)::sigaction(SIGPIPE, &pipe_, nullptr);
}

bool InterruptScope::requested() {
  return g_first_ns != 0;
}

}  // namespace neap
