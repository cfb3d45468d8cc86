#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/file.h"
#include "base/format.h"

extern char** environ;

namespace neap {
namespace {

constexpr std::size_t kKeptErrors = 2000;
constexpr auto kLook = std::chrono::milliseconds(5);

Status system_failure(std::string_view what, int error) {
  return {ErrorCode::kIo, format("{}: {}", what, system_reason(error))};
}

// Both ends of a pipe. Programs started meanwhile do not inherit them.
struct Pipe {
  std::array<int, 2> ends = {-1, -1};
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int end : ends)
      if (end >= 0) ::close(end);
  }
  [[nodiscard]] bool make() { return ::pipe2(ends.data(), O_CLOEXEC) == 0; }
  [[nodiscard]] int take(std::size_t end) {
    const int taken = ends[end];
    ends[end] = -1;
    (void)::fcntl(taken, F_SETFL, O_NONBLOCK);
    return taken;
  }
};

// A write to a program that has ended raises SIGPIPE, which would end this process. This blocks
// SIGPIPE for this thread and consumes one that was raised meanwhile.
class NoSigpipe {
 public:
  NoSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  ~NoSigpipe() {
    const timespec none{};
    if (!was_pending_)
      while (::sigtimedwait(&pipe_, nullptr, &none) == -1 && errno == EINTR) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

struct SpawnSettings {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// Sets limits from outside, just after the program has started and before it reads its first line.
void limit(pid_t process, const ChildProcess::Program& program) {
  if (program.memory_limit.is_zero() && program.file_size_limit.is_zero()) return;
  const auto set = [&](__rlimit_resource what, Bytes most) {
    rlimit now{};
    if (::prlimit(process, what, nullptr, &now) != 0) return;
    now.rlim_max = std::min<rlim_t>(now.rlim_max, most.count());
    now.rlim_cur = std::min(now.rlim_cur, now.rlim_max);
    (void)::prlimit(process, what, &now, nullptr);  // the program may have ended
  };
  set(RLIMIT_CORE, Bytes());
  if (!program.memory_limit.is_zero()) set(RLIMIT_DATA, program.memory_limit);
  if (!program.file_size_limit.is_zero()) set(RLIMIT_FSIZE, program.file_size_limit);
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const Program& program) {
  Pipe in;
  Pipe out;
  Pipe err;
  if (!in.make() || !out.make() || !err.make()) return system_failure("Cannot make a pipe", errno);
  SpawnSettings settings;
  ::posix_spawn_file_actions_adddup2(&settings.actions, in.ends[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&settings.actions, out.ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&settings.actions, err.ends[1], STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, STDERR_FILENO + 1);
  if (!program.folder.empty())
    ::posix_spawn_file_actions_addchdir_np(&settings.actions, program.folder.c_str());
  // The program gets its own process group: Ctrl-C goes to the run only, and killing the group ends
  // all its processes.
  sigset_t none;
  ::sigemptyset(&none);
  sigset_t usual;
  ::sigemptyset(&usual);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) ::sigaddset(&usual, number);
  ::posix_spawnattr_setpgroup(&settings.attributes, 0);
  ::posix_spawnattr_setsigmask(&settings.attributes, &none);
  ::posix_spawnattr_setsigdefault(&settings.attributes, &usual);
  ::posix_spawnattr_setflags(
      &settings.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::vector<char*> arguments = pointers(program.words);
  std::vector<char*> variables;
  if (program.environment) variables = pointers(*program.environment);
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  const int error =
      ::posix_spawnp(&child->process_, arguments[0], &settings.actions, &settings.attributes,
                     arguments.data(), program.environment ? variables.data() : environ);
  if (error != 0) {
    child->process_ = -1;
    const std::string where =
        program.folder.empty() ? std::string() : format(" in {}", program.folder.string());
    return system_failure(format("Cannot start \"{}\"{}", program.words[0], where), error);
  }
  limit(child->process_, program);
  child->in_ = in.take(1);
  child->out_ = out.take(0);
  child->err_ = err.take(0);
  return child;
}

ChildProcess::~ChildProcess() {
  ChildProcess* const self = this;
  end_all(std::span(&self, 1));
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void ChildProcess::close_stdin() {
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

Result<std::size_t> ChildProcess::write(std::string_view text) {
  const NoSigpipe guard;
  const ssize_t written = ::write(in_, text.data(), text.size());
  if (written >= 0) return static_cast<std::size_t>(written);
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  if (errno == EPIPE) return Status(ErrorCode::kIo, "does not read its stdin" + last_words());
  return system_failure("cannot be written to", errno);
}

Status ChildProcess::read(std::string& text) {
  std::array<char, 1 << 16> buffer{};
  const ssize_t got = ::read(out_, buffer.data(), buffer.size());
  if (got > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
    return {};
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got < 0) return system_failure("cannot be read from", errno);
  return {ErrorCode::kIo, "closed its stdout" + last_words()};
}

void ChildProcess::read_errors() {
  std::array<char, 4096> buffer{};
  // The loop is bounded, because a program may write without end. The next call continues.
  for (int turn = 0; turn < 64 && err_ >= 0; ++turn) {
    const ssize_t got = ::read(err_, buffer.data(), buffer.size());
    if (got < 0) return;
    if (got == 0) {
      ::close(err_);
      err_ = -1;
      return;
    }
    errors_.append(buffer.data(), static_cast<std::size_t>(got));
    if (errors_.size() > kKeptErrors) errors_.erase(0, errors_.size() - kKeptErrors);
  }
}

std::string ChildProcess::recent_errors() {
  read_errors();
  if (errors_.empty()) return {};
  std::string out = "; its stderr ends with:\n" + errors_;
  while (out.ends_with('\n')) out.pop_back();
  return out;
}

std::string ChildProcess::last_words() {
  std::string out;
  siginfo_t info{};
  ChildProcess* const self = this;
  if (wait_for_end(std::span(&self, 1), 0.1) &&
      ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
    out = info.si_code == CLD_EXITED ? format("; it ended with exit code {}", info.si_status)
                                     : format("; it was ended by signal {}", info.si_status);
  }
  return out + recent_errors();
}

std::optional<int> ChildProcess::exit_code() const {
  siginfo_t info{};
  if (process_ < 0 ||
      ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != process_ || info.si_code != CLD_EXITED)
    return std::nullopt;
  return info.si_status;
}

bool ChildProcess::ended() const {
  siginfo_t info{};
  // WNOWAIT does not reap the process, so its id, which is also the group's id, is not reused.
  return process_ < 0 ||
         ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == process_;
}

bool ChildProcess::wait_for_end(std::span<ChildProcess* const> children, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!std::all_of(children.begin(), children.end(),
                      [](const ChildProcess* child) { return child->ended(); })) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

void ChildProcess::kill() {
  ChildProcess* const self = this;
  kill_all(std::span(&self, 1));
}

void ChildProcess::kill_all(std::span<ChildProcess* const> children) {
  for (const ChildProcess* child : children)
    if (child->process_ >= 0) (void)::kill(-child->process_, SIGTERM);
  (void)wait_for_end(children, kTermSeconds);
  for (ChildProcess* child : children) child->reap();
}

void ChildProcess::end_all(std::span<ChildProcess* const> children) {
  for (ChildProcess* child : children) child->close_stdin();
  if (!wait_for_end(children, kExitSeconds)) return kill_all(children);
  for (ChildProcess* child : children) child->reap();
}

namespace {

std::vector<ChildProcess*> present(ChildProcess::Children children) {
  std::vector<ChildProcess*> out;
  for (const auto& child : children)
    if (child) out.push_back(child.get());
  return out;
}

}  // namespace

void ChildProcess::kill_all(Children children) {
  kill_all(std::span<ChildProcess* const>(present(children)));
}

void ChildProcess::end_all(Children children) {
  end_all(std::span<ChildProcess* const>(present(children)));
}

// Also ends the remaining processes of the group.
void ChildProcess::reap() {
  if (process_ < 0) return;
  (void)::kill(-process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
  process_ = -1;
}

}  // namespace neap
