// A libneap_mpi.so that stands before the real one: MPI, which can begin only once in a process, stays for the next run. The time
// limit of waits is that of the first.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "parallel/mpi_plugin.h"
#include "resident_mpi.h"

namespace {

const NeapMpi* real = nullptr;
bool started = false;
int this_rank = 0, all_ranks = 1;

NeapMpi table() {
  NeapMpi t = *real;
  t.start = [](double timeout_seconds, int* rank, int* size) {
    if (!started) {
      if (const int error = real->start(timeout_seconds, &this_rank, &all_ranks); error != 0)
        return error;
      started = true;
    }
    *rank = this_rank;
    *size = all_ranks;
    return 0;
  };
  t.finish = [] { return real->barrier(0); };
  return t;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const NeapMpi* neap_mpi_entry() {
  static NeapMpi shared;
  if (real != nullptr) return &shared;
  void* const library = dlopen(NEAP_MPI_FILE, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "resident_mpi: %s\n", dlerror());
    std::abort();
  }
  real = reinterpret_cast<NeapMpiEntry>(dlsym(library, NEAP_MPI_ENTRY))();
  shared = table();
  return &shared;
}

extern "C" __attribute__((visibility("default"))) int resident_mpi_end() {
  return started ? real->finish() : 0;
}
