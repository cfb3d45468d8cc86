// How libneap_mpi.so waits for other ranks: by polling, with an end.
//
// Ranks tell each other three words over a communicator of their own: that one works, that it waits for others, and that it
// waits no more. The first begins everybody's time again; the others say after a timeout who did not come.
//
// Threads   one.   Failure   MPI's error codes, NEAP_MPI_TIMED_OUT.
// Cost      a wait that takes longer than a few microseconds yields the processor between polls.
#pragma once

#include <mpi.h>

#include <chrono>
#include <vector>

namespace neap::parallel {

class MpiWaits {
 public:
  /// After MPI's start; every rank calls it.
  [[nodiscard]] int begin(double timeout_seconds);
  /// Until `request`, which `begun` says was begun without an error, is done.
  [[nodiscard]] int finish(int begun, MPI_Request& request);
  [[nodiscard]] int show_life() { return tell(kWorks); }
  /// missing[r]: rank r has not said that it waits.
  void missing(char* missing) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum Word : int { kWorks, kWaits, kWaitsNoMore };
  [[nodiscard]] int tell(Word word);
  // Hears all that has come; `works`: a rank does.
  [[nodiscard]] int listen(bool& works);
  [[nodiscard]] int wait_long(MPI_Request& request);

  MPI_Comm words_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::chrono::duration<double> limit_{0};
  std::vector<bool> waiting_;  // by rank
};

}  // namespace neap::parallel
