// Which process this is, and what it takes of the host.
//
// Threads   any.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/bytes.h"

namespace neap {

/// getpid() without the system call, cheap enough for every call of an allocator: one atomic read;
/// the system is asked once, and again in a forked child.
[[nodiscard]] pid_t current_process();

/// While it lives, the calling thread and those that it creates take none of the process's signals, which are
/// for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// Host memory that the process holds now (VmRSS); zero where /proc does not say.
[[nodiscard]] Bytes resident_memory();

}  // namespace neap
