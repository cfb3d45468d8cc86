#include "cli/signalled_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/file.h"
#include "base/format.h"

namespace neap::cli {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Keeps signals pending, so that they are taken by take() and not by a handler.
class PendingSignals {
 public:
  PendingSignals() {
    ::sigemptyset(&watched_);
    for (const int number : kForwarded) ::sigaddset(&watched_, number);
    ::sigaddset(&watched_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &watched_, &before_);
    // A parent may have left it ignored, and then no exit code is kept.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);
  }
  PendingSignals(const PendingSignals&) = delete;
  PendingSignals& operator=(const PendingSignals&) = delete;
  ~PendingSignals() { restore(); }
  /// What the process had before.
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// Waits for a signal, for `period` at most unless it is zero. False: none came.
  [[nodiscard]] bool take(siginfo_t& info, std::chrono::milliseconds period) const {
    if (period.count() == 0) return ::sigwaitinfo(&watched_, &info) > 0;
    const timespec limit{period.count() / 1000, period.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&watched_, &info, &limit) > 0;
  }

 private:
  sigset_t watched_{}, before_{};
};

bool went_to_child(const siginfo_t& info, pid_t child) {
  if (info.si_code != SI_KERNEL) return false;
  // The end of a terminal is told to the session's leader alone, a key to the group.
  const bool leader_only = info.si_signo == SIGHUP && ::getsid(0) == ::getpid();
  return !leader_only && ::getpgid(child) == ::getpgrp();
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

Result<pid_t> start(const SignalledChild& child, const PendingSignals& signals) {
  const std::vector<char*> arguments = pointers(child.words);
  const std::vector<char*> variables = pointers(child.environment);
  std::array<int, 2> report{};  // closed by a successful exec, else holds errno
  if (::pipe2(report.data(), O_CLOEXEC) != 0)
    return Status(ErrorCode::kIo, "Cannot make a pipe: " + system_reason(errno));
  const pid_t process = ::fork();
  if (process == 0) {
    if (child.output_to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    signals.restore();
    ::execvpe(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    (void)!::write(report[1], &error, sizeof error);
    ::_exit(127);
  }
  int error = process < 0 ? errno : 0;
  ::close(report[1]);
  if (process > 0) {
    while (::read(report[0], &error, sizeof error) < 0 && errno == EINTR) continue;
    if (error != 0) ::waitpid(process, nullptr, 0);
  }
  ::close(report[0]);
  if (process < 0) return Status(ErrorCode::kIo, "Cannot fork: " + system_reason(error));
  if (error != 0)
    return Status(ErrorCode::kNotFound,
                  format("Cannot start \"{}\": {}", child.words[0], system_reason(error)));
  return process;
}

}  // namespace

Result<int> run_child(const SignalledChild& child, std::chrono::milliseconds period,
                      const std::function<void()>& look) {
  const PendingSignals signals;
  NEAP_TRY_ASSIGN(const pid_t process, start(child, signals));
  int status = 0;
  while (true) {
    const pid_t ended = ::waitpid(process, &status, WNOHANG);
    if (ended == process) break;
    if (ended < 0 && errno != EINTR)
      return Status(ErrorCode::kInternal,
                    format("Lost \"{}\": {}", child.words[0], system_reason(errno)));
    if (look) look();
    siginfo_t info{};
    if (!signals.take(info, look ? period : std::chrono::milliseconds(0))) continue;
    if (info.si_signo != SIGCHLD && !went_to_child(info, process))
      (void)::kill(process, info.si_signo);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace neap::cli
