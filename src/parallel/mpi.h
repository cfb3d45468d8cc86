// Collectives of CPU ranks over MPI.
//
// Neap adds the sums: each rank gathers its part of the buffer from all ranks, adds in the order of
// ranks and sends the result to all. So results do not depend on MPI's algorithm or on arrival
// order. bfloat16 also works, which MPI does not know. Traffic is that of a ring: 2 (R - 1) / R of
// the buffer each way.
//
// Waits     have a timeout. After a timeout or a failure of MPI every later call fails at once. A
//           rank that computes for long calls show_life().
// Memory    work buffers of about 8 MiB of ordinary host memory, outside the arena.
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mpi_plugin.h"

namespace neap::parallel {

/// Loads libneap_mpi.so from ../lib of the program and starts MPI. Fails if the library is missing,
/// or if MPI's rank or size differs from the launcher's.
[[nodiscard]] std::unique_ptr<Communicator> connect_mpi(const Environment& environment,
                                                        double timeout_seconds);

/// Uses a table of functions (a test's, or the plug-in's), which must outlive it.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi(const NeapMpi& mpi, int rank, int size,
                                                     std::int64_t piece_bytes,
                                                     double timeout_seconds);

}  // namespace neap::parallel
