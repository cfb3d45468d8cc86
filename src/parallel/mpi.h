// Collectives of CPU ranks over MPI.
//
// Sums are Neap's own: each rank gathers its part of the buffer from all, adds in the order of the
// ranks and gives the result to all. So bits do not depend on MPI's algorithms or on who came first,
// and bfloat16, which MPI does not know, works. Traffic is that of a ring, 2 (R - 1) / R of the
// buffer each way.
// Waits     end after a timeout; then, or when MPI fails, every later call fails at once. A rank that works for long says so
//           (show_life).
// Memory    workspaces of about 8 MiB of plain host memory, none of a phase's.
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mpi_plugin.h"

namespace neap::parallel {

/// Loads libneap_mpi.so, which is in ../lib of the program, and starts MPI. Fails when it is
/// not there, or when MPI finds other ranks than the launcher announced.
[[nodiscard]] std::unique_ptr<Communicator> connect_mpi(const Environment& environment,
                                                        double timeout_seconds);

/// Over a table of functions (a test's, or the plug-in's), which outlives it.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi(const NeapMpi& mpi, int rank, int size,
                                                     std::int64_t piece_bytes,
                                                     double timeout_seconds);

}  // namespace neap::parallel
