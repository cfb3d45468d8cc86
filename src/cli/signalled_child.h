// Runs a program in place of this process: in its process group, on its terminal, with its signals.
//
// Model     A signal to this process alone (kill) is forwarded. A signal to the whole group
//           (terminal keys, kill -- -PGID, systemd, Slurm) is not forwarded, because the program
//           got it. No signal is lost and none ends this process alone, from before the program
//           starts until it has ended.
//
// Threads   the process has one.
//
// Failure   kNotFound if the program cannot be started.
//
// Cost      one more process, which waits. A signal is forwarded 50 ms late.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace neap::cli {

struct SignalledChild {
  std::vector<std::string> words;        ///< the program, looked up in PATH, then its arguments
  std::vector<std::string> environment;  ///< NAME=VALUE
  bool output_to_stderr = false;         ///< redirects its stdout to stderr
};

/// Runs the program to its end and returns its exit code, or 128 + the signal that ended it. Calls
/// `look` at the start and about every `period`; null: never.
[[nodiscard]] Result<int> run_child(const SignalledChild& child, std::chrono::milliseconds period,
                                    const std::function<void()>& look);

}  // namespace neap::cli
