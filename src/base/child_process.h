// A program with pipes to its stdin, stdout and stderr, in a process group of its own.
//
// Threads   one at a time.
// Failure   Status with the system's reason, and the end of what the program wrote to stderr.
// Cost      started without copying this process's page tables. The destructor closes stdin and waits
//           up to kExitSeconds for the program to end; then the whole group is killed.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap {

class ChildProcess {
 public:
  static constexpr double kExitSeconds = 2;  ///< after its stdin is closed
  static constexpr double kTermSeconds = 1;  ///< between SIGTERM and SIGKILL

  /// `command[0]` is looked up in PATH unless it has a slash; it runs in `folder`.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& command, const std::filesystem::path& folder);
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
  /// "; it ended with exit code 1; its stderr ends with: ..." as far as there is something to say.
  [[nodiscard]] std::string last_words();
  /// What ends a program that reads lines.
  void close_stdin();
  /// SIGTERM to the group, SIGKILL kTermSeconds later.
  void kill();

 private:
  ChildProcess() = default;
  [[nodiscard]] bool ended() const;
  [[nodiscard]] bool wait_for_end(double seconds) const;
  void reap();

  pid_t process_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string errors_;
};

}  // namespace neap
