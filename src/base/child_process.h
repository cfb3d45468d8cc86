// A program with pipes to its stdin, stdout and stderr, in its own process group.
//
// Threads   one at a time.
// Failure   Status with the system's reason and the end of the program's stderr.
// Cost      it starts without copying this process's page tables. The destructor closes stdin,
//           waits up to kExitSeconds for the program to end, then kills the group. end_all() does
//           that for many programs in the time of one.
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
    std::vector<std::string> words;  ///< the first word is looked up in PATH unless it has a slash
    std::filesystem::path folder{};  ///< empty: this process's folder
    /// NAME=VALUE; nullopt: this process's environment.
    std::optional<std::vector<std::string>> environment{};
    /// Limits of each process of the program, which cannot raise them; zero: this process's limit.
    /// The memory limit counts private writable memory (RLIMIT_DATA). A limited program writes no
    /// core file.
    Bytes memory_limit{}, file_size_limit{};
  };
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(const Program& program);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Descriptors for poll(). All are non-blocking.
  [[nodiscard]] int in() const { return in_; }
  [[nodiscard]] int out() const { return out_; }
  [[nodiscard]] int err() const { return err_; }

  /// Writes as much as fits in the pipe and returns the bytes written. Fails if the program has
  /// ended.
  [[nodiscard]] Result<std::size_t> write(std::string_view text);
  /// Appends the available output to `text`. Fails at the end of stdout.
  [[nodiscard]] Status read(std::string& text);
  /// Keeps the last bytes of the available stderr.
  void read_errors();
  /// Returns "; it ended with exit code 1; its stderr ends with: ...", with only the parts that are
  /// known. Waits briefly for a program that is about to end.
  [[nodiscard]] std::string last_words();
  /// Exit code of a program that has ended; nullopt if it runs or was ended by a signal.
  [[nodiscard]] std::optional<int> exit_code() const;
  /// Returns "; its stderr ends with: ..." for a program that runs.
  [[nodiscard]] std::string recent_errors();
  /// Ends a program that reads lines until the end of stdin.
  void close_stdin();

  /// Sends SIGTERM to the group, and SIGKILL kTermSeconds later to the processes that remain.
  void kill();
  using Children = std::span<const std::unique_ptr<ChildProcess>>;  // entries may be null
  /// As kill(), for many programs in the time of one.
  static void kill_all(Children children);
  /// Closes stdin of all, waits up to kExitSeconds for all to end, then kills the remaining ones.
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
