// A program that runs in this process's place: in its process group, on its terminal, with its signals.
//
// Model     A signal to this process alone (kill) is forwarded. One to the whole group (the terminal's keys,
//           kill -- -PGID, systemd, Slurm) is not: the program got it. From before the program starts until it has
//           ended no signal is lost and none ends this process alone.
//
// Threads   the process has one.
//
// Failure   kNotFound where the program cannot be started.
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
  std::vector<std::string> words;        ///< the program, looked up in PATH, and its arguments
  std::vector<std::string> environment;  ///< NAME=VALUE
  bool output_to_stderr = false;         ///< what it writes to stdout
};

/// Runs it to its end; returns its exit code, or 128 + the signal that ended it. `look` is called at the start and
/// about every `period` meanwhile; null: never.
[[nodiscard]] Result<int> run_child(const SignalledChild& child, std::chrono::milliseconds period,
                                    const std::function<void()>& look);

}  // namespace neap::cli
