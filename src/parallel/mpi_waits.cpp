#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "parallel/mpi_waits.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>

#include "parallel/mpi_plugin.h"
#include "parallel/wait_clock.h"

namespace neap::parallel {
namespace {

constexpr int kPollsAtOnce = 1000;
constexpr std::chrono::milliseconds kListening{50};
// A wait of more than a millisecond sleeps between polls, for a fraction of the time it has lasted:
// it then ends late by at most that fraction.
constexpr std::chrono::milliseconds kYielding{1}, kLongestSleep{1};
constexpr int kShareOfSleep = 16;
// Ranks time out one after another, so that the first one can name the late rank: mpirun takes a
// second to end the others.
constexpr double kSecondsBetweenRanks = 2;
// Fraction of the timeout after which a rank says that it waits.
constexpr double kLongWait = 0.25;

}  // namespace

int MpiWaits::begin(double timeout_seconds) {
  if (const int e = MPI_Comm_dup(MPI_COMM_WORLD, &words_); e != 0) return e;
  if (const int e = MPI_Comm_set_errhandler(words_, MPI_ERRORS_RETURN); e != 0) return e;
  int size = 1;
  if (const int e = MPI_Comm_rank(words_, &rank_); e != 0) return e;
  if (const int e = MPI_Comm_size(words_, &size); e != 0) return e;
  waiting_.assign(static_cast<std::size_t>(size), false);
  limit_ = std::chrono::duration<double>(timeout_seconds + kSecondsBetweenRanks * rank_);
  return 0;
}

int MpiWaits::tell(Word word) {
  // Static, because a send may read its word after this call has returned.
  static constexpr std::array<int, 3> kWords{kWorks, kWaits, kWaitsNoMore};
  for (int r = 0; r < static_cast<int>(waiting_.size()); ++r) {
    if (r == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (const int e = MPI_Isend(&kWords.at(word), 1, MPI_INT, r, 0, words_, &request); e != 0)
      return e;
    if (const int e = MPI_Request_free(&request); e != 0) return e;
  }
  return 0;
}

int MpiWaits::listen(bool& works) {
  while (true) {
    int here = 0, word = kWorks;
    MPI_Status from;
    if (const int e = MPI_Iprobe(MPI_ANY_SOURCE, 0, words_, &here, &from); e != 0) return e;
    if (here == 0) return 0;
    if (const int e = MPI_Recv(&word, 1, MPI_INT, from.MPI_SOURCE, 0, words_, MPI_STATUS_IGNORE);
        e != 0)
      return e;
    works |= word == kWorks;
    if (word != kWorks) waiting_.at(static_cast<std::size_t>(from.MPI_SOURCE)) = word == kWaits;
  }
}

int MpiWaits::finish(int begun, MPI_Request& request) {
  if (begun != 0) return begun;
  int done = 0;
  for (int i = 0; i < kPollsAtOnce; ++i) {
    if (const int e = MPI_Test(&request, &done, MPI_STATUS_IGNORE); e != 0 || done != 0) return e;
  }
  return wait_long(request);
}

int MpiWaits::wait_long(MPI_Request& request) {
  const auto begun = Clock::now();
  auto heard = begun;
  WaitClock clock(heard);
  bool told = false;
  while (true) {
    int done = 0;
    if (const int e = MPI_Test(&request, &done, MPI_STATUS_IGNORE); e != 0) return e;
    if (done != 0) return told ? tell(kWaitsNoMore) : 0;
    const auto now = Clock::now();
    if (now - begun < kYielding)
      sched_yield();
    else
      std::this_thread::sleep_for(
          std::min<Clock::duration>((now - begun) / kShareOfSleep, kLongestSleep));
    if (now - heard < kListening) continue;
    heard = now;
    bool works = false;
    if (const int e = listen(works); e != 0) return e;
    if (works) clock.restart(now);
    const WaitClock::Seconds waited = clock.look(now);
    if (waited > limit_) return NEAP_MPI_TIMED_OUT;
    if (told || waited < kLongWait * limit_) continue;
    told = true;
    if (const int e = tell(kWaits); e != 0) return e;
  }
}

void MpiWaits::missing(char* missing) const {
  for (std::size_t r = 0; r < waiting_.size(); ++r)
    missing[r] = static_cast<char>(!waiting_[r] && static_cast<int>(r) != rank_);
}

}  // namespace neap::parallel
