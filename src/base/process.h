// Which process this is, and what it takes of the host.
//
// Threads   any.
#pragma once

#include <sys/types.h>

#include "base/bytes.h"

namespace neap {

/// getpid() without the system call, cheap enough for every call of an allocator: one atomic read;
/// the system is asked once, and again in a forked child.
[[nodiscard]] pid_t current_process();

/// Host memory that the process holds now (VmRSS); zero where /proc does not say.
[[nodiscard]] Bytes resident_memory();

}  // namespace neap
