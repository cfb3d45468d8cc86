#include "cli/signalled_child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::cli {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
/// systemd and Slurm signal the processes of a job one after the other; this is the time that they
/// need.
constexpr auto kSenderTime = std::chrono::milliseconds(50);

// Keeps signals pending, so that take() receives them instead of a handler.
class PendingSignals {
 public:
  PendingSignals() {
    ::sigemptyset(&watched_);
    for (const int number : kForwarded) ::sigaddset(&watched_, number);
    ::sigaddset(&watched_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &watched_, &before_);
    // A parent may have left SIGCHLD ignored; the kernel would then keep no exit code.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);
  }
  PendingSignals(const PendingSignals&) = delete;
  PendingSignals& operator=(const PendingSignals&) = delete;
  ~PendingSignals() { restore(); }
  /// Restores the process's previous signal mask.
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// Waits for a signal, at most for `period` unless that is zero. False: no signal arrived.
  [[nodiscard]] bool take(siginfo_t& info, std::chrono::milliseconds period) const {
    if (period.count() == 0) return ::sigwaitinfo(&watched_, &info) > 0;
    const timespec limit{period.count() / 1000, period.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&watched_, &info, &limit) > 0;
  }

 private:
  sigset_t watched_{}, before_{};
};

// Distinguishes a signal to the whole group, which the child also got, from one to this process
// alone; siginfo_t is the same for both. A helper process in the group (`cat`, waiting for the end
// of a pipe) blocks all signals. Signals to the group stay pending in it, and /proc shows them.
class GroupWitness {
 public:
  GroupWitness() { start(); }
  GroupWitness(const GroupWitness&) = delete;
  GroupWitness& operator=(const GroupWitness&) = delete;
  ~GroupWitness() { stop(); }
  /// Whether the group also got this signal, which this process has just received.
  [[nodiscard]] bool saw(int number) {
    std::this_thread::sleep_for(kSenderTime);
    if (const std::uint64_t pending = pending_signals(); pending != 0) {
      seen_ |= pending;
      stop();
      start();
    }
    const std::uint64_t bit = std::uint64_t{1} << (number - 1);
    const bool saw = (seen_ & bit) != 0;
    seen_ &= ~bit;
    return saw;
  }

 private:
  void start() {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return warn(errno);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, pipe[0], STDIN_FILENO);
    for (const int output : {STDOUT_FILENO, STDERR_FILENO})
      ::posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    std::array<char, 4> name = {"cat"};
    std::array<char*, 2> arguments = {name.data(), nullptr};
    std::array<char*, 1> variables = {nullptr};
    // The child inherits the mask of PendingSignals and this process's group.
    const int error = ::posix_spawnp(&process_, name.data(), &actions, nullptr, arguments.data(),
                                     variables.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[0]);
    end_ = pipe[1];
    if (error == 0) return;
    stop();
    warn(error);
  }
  void stop() {
    if (process_ > 0) {
      (void)::kill(process_, SIGKILL);
      while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
    }
    if (end_ >= 0) ::close(end_);
    process_ = end_ = -1;
  }
  static void warn(int error) {
    log::warn(format("Cannot start cat ({}): signals to the process group reach the command twice",
                     system_reason(error)));
  }
  [[nodiscard]] std::uint64_t pending_signals() const {
    const auto status = read_file(format("/proc/{}/status", process_), 1_MiB);
    if (process_ < 0 || !status.ok()) return 0;
    constexpr std::string_view kField = "ShdPnd:";
    const std::size_t at = status->find(kField);
    return at == std::string::npos
               ? 0
               : std::strtoull(status->c_str() + at + kField.size(), nullptr, 16);
  }

  pid_t process_ = -1;
  int end_ = -1;            ///< end of the pipe: closed when this process ends in any way
  std::uint64_t seen_ = 0;  ///< bit n - 1: the group got signal n, this process has not yet
};

bool went_to_child(const siginfo_t& info, pid_t child, GroupWitness& witness) {
  const bool group_got_it = witness.saw(info.si_signo);
  return group_got_it && ::getpgid(child) == ::getpgrp();
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
  std::array<int, 2> report{};  // a successful exec closes it; after a failure it holds errno
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
  GroupWitness witness;  // started last: signals that it has, the child also got
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
    if (info.si_signo != SIGCHLD && !went_to_child(info, process, witness))
      (void)::kill(process, info.si_signo);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace neap::cli
