// Runs independent jobs on several threads.
//
// Threads   any; calls may nest.
// Failure   throws the first exception of a job after all threads have ended; jobs not started by
//           then are skipped. If the system provides fewer threads, these do the same work.
// Cost      creates and joins its threads, so jobs should take milliseconds.
#pragma once

#include <cstddef>
#include <functional>

namespace neap {

/// Runs job(0) ... job(count - 1) on up to `threads` threads, including the caller's.
void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& job);

}  // namespace neap
