// Waits of libneap_mpi.so for other ranks: it polls, with a timeout.
//
// Ranks send each other three signals on a communicator of their own: "working", "waiting" and
// "done waiting". "Working" restarts the timeouts of all ranks. The other two let a rank say after
// a timeout which ranks did not arrive.
//
// Threads   one.
// Failure   MPI's error codes, NEAP_MPI_TIMED_OUT.
// Cost      polling; a wait longer than a few microseconds yields the processor between polls, one
//           longer than a millisecond sleeps.
#pragma once

#include <mpi.h>

#include <chrono>
#include <vector>

namespace neap::parallel {

class MpiWaits {
 public:
  /// Call after MPI's start, on every rank.
  [[nodiscard]] int begin(double timeout_seconds);
  /// Waits until `request` is complete. `begun` is the error code of the call that started it.
  [[nodiscard]] int finish(int begun, MPI_Request& request);
  [[nodiscard]] int show_life() { return tell(kWorks); }
  /// Sets missing[r] if rank r has not said that it waits.
  void missing(char* missing) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum Word : int { kWorks, kWaits, kWaitsNoMore };
  [[nodiscard]] int tell(Word word);
  // Receives all pending signals. Sets `works` if a rank is working.
  [[nodiscard]] int listen(bool& works);
  [[nodiscard]] int wait_long(MPI_Request& request);

  MPI_Comm words_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::chrono::duration<double> limit_{0};
  std::vector<bool> waiting_;  // per rank
};

}  // namespace neap::parallel
