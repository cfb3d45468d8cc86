// A program with pipes to its stdin, stdout and stderr, in a process group of its own.
//
// Threads   one at a time.
// Failure   Status with the system's reason, and the end of what the program wrote to stderr.
// Cost      started without copying this process's page tables. The destructor closes stdin and waits
//           up to kExitSeconds for the program to end; then the whole group is killed. end_all() does
//           that for many in the time of one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap {

class ChildProcess {
 public:
  static constexpr double kExitSeconds = 2;  ///< after its stdin is closed
  static constexpr double kTermSeconds = 1;  ///< between SIGTERM and SIGKILL

  struct Program {
    std::vector<std::string> words;  ///< the first is looked up in PATH unless it has a slash
    std::filesystem::path folder{};  ///< empty: this process's
    /// NAME=VALUE; nullopt: this process's environment.
    std::optional<std::vector<std::string>> environment{};
    /// Of each of its processes, which cannot raise them; zero: this process's limit. Memory is what a
    /// process can write to and shares with nobody (RLIMIT_DATA). A limited program writes no core file.
    Bytes memory_limit{}, file_size_limit{};
  };
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(const Program& program);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Descriptors for poll(); all are non-blocking.
  [[nodiscard]] int in() const { return in_; }
  [[nodiscard]] int out() const { return out_; }
  [[nodiscard]] int err() const { return err_; }

  /// Writes as much as the pipe takes; the bytes written. A program that ended is a failure.
  [[nodiscard]] Result<std::size_t> write(std::string_view text);
  /// Appends what is there to `text`. The end of stdout is a failure.
  [[nodiscard]] Status read(std::string& text);
  /// Keeps the last of what is there in stderr.
  void read_errors();
  /// "; it ended with exit code 1; its stderr ends with: ..." as far as there is something to say. Waits a moment for
  /// a program that is about to end.
  [[nodiscard]] std::string last_words();
  /// Of one that has ended of itself; nullopt: it runs, or a signal ended it.
  [[nodiscard]] std::optional<int> exit_code() const;
  /// "; its stderr ends with: ...", of a program that runs.
  [[nodiscard]] std::string recent_errors();
  /// What ends a program that reads lines.
  void close_stdin();

  /// SIGTERM to the group, SIGKILL kTermSeconds later to what is left of it.
  void kill();
  using Children = std::span<const std::unique_ptr<ChildProcess>>;  // null: none
  /// kill() for many in the time of one.
  static void kill_all(Children children);
  /// Closes stdin of all, waits up to kExitSeconds for all to end and kills what is left.
  static void end_all(Children children);

 private:
  ChildProcess() = default;
  [[nodiscard]] bool ended() const;
  static bool wait_for_end(std::span<ChildProcess* const> children, double seconds);
  static void kill_all(std::span<ChildProcess* const> children);
  static void end_all(std::span<ChildProcess* const> children);
  void reap();

  pid_t process_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string errors_;
};

}  // namespace neap
