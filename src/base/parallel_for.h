// Independent jobs on several threads.
//
// Threads   any; calls may nest.
// Failure   the first exception of a job, after all threads have ended; jobs not begun by then are left out. Fewer
//           threads than asked for, where the system gives no more, do the same work.
// Cost      creates and joins its threads: for jobs of milliseconds.
#pragma once

#include <cstddef>
#include <functional>

namespace neap {

/// job(0) ... job(count - 1), on up to `threads` threads, the caller's among them.
void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& job);

}  // namespace neap
