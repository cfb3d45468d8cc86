// Which process this is, cheap enough for every call of an allocator.
//
// Threads   any.   Cost   one atomic read; the system is asked once, and again in a forked child.
#pragma once

#include <sys/types.h>

namespace neap {

/// getpid() without the system call.
[[nodiscard]] pid_t current_process();

}  // namespace neap
