#include "base/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace neap {
namespace {

constexpr std::uint32_t kSameEventMs = 1000;
// Sender id for signals from the terminal's keys.
constexpr std::uint32_t kKernel = ~std::uint32_t{0};

std::atomic<bool> g_requested{false};
std::atomic<const char*> g_notice{nullptr};
// Senders of signals and their times in milliseconds, as SENDER << 32 | TIME. It is one word,
// because the handler may run on two threads at once.
std::array<std::atomic<std::uint64_t>, 16> g_senders{};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a signal handler uses it");

std::uint32_t now_ms() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint32_t>(std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000);
}

// Whether the sender asked before, for another event. A 17th sender is not recorded and counts as
// new.
bool asked_before(const siginfo_t& info) {
  // The process id is 0 if the sender is in another namespace, for example outside of this
  // container.
  const std::uint32_t sender =
      info.si_code > 0 ? kKernel : static_cast<std::uint32_t>(info.si_pid) + 1;
  const std::uint32_t now = now_ms();
  for (std::atomic<std::uint64_t>& slot : g_senders) {
    std::uint64_t entry = 0;
    if (slot.compare_exchange_strong(entry, std::uint64_t{sender} << 32 | now)) return false;
    if (entry >> 32 == sender) return now - static_cast<std::uint32_t>(entry) >= kSameEventMs;
  }
  return false;
}

void on_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const bool again = number != SIGHUP && asked_before(*info);
  if (!g_requested.exchange(true)) {
    const char* const notice = g_notice.load();
    // A failed write to stderr cannot be handled here.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, notice, ::strlen(notice));
  } else if (again) {
    (void)::signal(number, SIG_DFL);
    (void)::raise(number);  // delivered when this function returns
  }
  errno = error;
}

void catch_signal(int number, struct sigaction& before) {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  (void)::sigaction(number, &action, &before);
}

}  // namespace

InterruptScope::InterruptScope(const char* notice, InterruptSignals signals) : signals_(signals) {
  g_notice = notice;
  for (std::atomic<std::uint64_t>& slot : g_senders) slot = 0;
  g_requested = false;
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
  return g_requested;
}

}  // namespace neap
