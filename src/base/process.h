// The current process: its id, its signals and its host memory. And the machine's memory.
//
// Threads   any.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/bytes.h"

namespace neap {

/// As getpid() without the system call: one atomic read, cheap enough for every call of an
/// allocator. The system is asked once, and again in a forked child.
[[nodiscard]] pid_t current_process();

/// During its lifetime, the calling thread and threads that it creates do not receive the process's
/// signals. Signals are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// Host memory that the process holds now (VmRSS); zero if /proc does not say.
[[nodiscard]] Bytes resident_memory();

/// Host memory of the machine; zero if the system does not say.
[[nodiscard]] Bytes machine_memory();

}  // namespace neap
