// A libneap_mpi.so that stands before the real one and, on one rank, does something at one call: the calls that can fail or wait are
// counted from 1 on.
//
// NEAP_TEST_MPI     the real one
// NEAP_TEST_FAULT   RANK:CALL:KIND; fail: the call gives an error and does nothing; stop, kill: the process gets SIGSTOP or
//                   SIGKILL before it
// NEAP_TEST_CALLS   a folder: each rank leaves the number of its calls there, in a file named after it, when MPI ends
#include <dlfcn.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "parallel/mpi_plugin.h"

namespace {

constexpr int kOtherError = 16;  // MPI_ERR_OTHER of OpenMPI

struct Fault {
  int rank = -1, call = 0;
  char kind[8] = "";
};

const NeapMpi* real = nullptr;
Fault fault;
int this_rank = 0, calls = 0;

// Whether the call that begins fails.
bool fails() {
  if (++calls != fault.call || this_rank != fault.rank) return false;
  if (std::strcmp(fault.kind, "stop") == 0) std::raise(SIGSTOP);
  if (std::strcmp(fault.kind, "kill") == 0) std::raise(SIGKILL);
  return std::strcmp(fault.kind, "fail") == 0;
}

int finish() {
  if (const char* folder = std::getenv("NEAP_TEST_CALLS")) {
    char name[512];
    std::snprintf(name, sizeof name, "%s/%d", folder, this_rank);
    if (std::FILE* file = std::fopen(name, "w")) {
      std::fprintf(file, "%d", calls);
      std::fclose(file);
    }
  }
  return fails() ? kOtherError : real->finish();
}

NeapMpi table() {
  NeapMpi t = *real;
  t.start = [](double timeout_seconds, int* rank, int* size) {
    const int error = real->start(timeout_seconds, rank, size);
    this_rank = *rank;
    return error;
  };
  t.split = [](int group, int color, int* result) {
    return fails() ? kOtherError : real->split(group, color, result);
  };
  t.all_to_all = [](int group, const void* in, const int* in_bytes, const int* in_offsets,
                    void* out, const int* out_bytes, const int* out_offsets) {
    return fails() ? kOtherError
                   : real->all_to_all(group, in, in_bytes, in_offsets, out, out_bytes, out_offsets);
  };
  t.all_gather = [](int group, void* data, const int* bytes, const int* offsets) {
    return fails() ? kOtherError : real->all_gather(group, data, bytes, offsets);
  };
  t.broadcast = [](int group, void* data, int bytes, int root) {
    return fails() ? kOtherError : real->broadcast(group, data, bytes, root);
  };
  t.send = [](int group, const void* data, int bytes, int to) {
    return fails() ? kOtherError : real->send(group, data, bytes, to);
  };
  t.receive = [](int group, void* data, int bytes, int from) {
    return fails() ? kOtherError : real->receive(group, data, bytes, from);
  };
  t.barrier = [](int group) { return fails() ? kOtherError : real->barrier(group); };
  t.finish = finish;
  return t;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const NeapMpi* neap_mpi_entry() {
  static NeapMpi faulty;
  if (real != nullptr) return &faulty;
  void* const library = dlopen(std::getenv("NEAP_TEST_MPI"), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "faulty_mpi: %s\n", dlerror());
    std::abort();
  }
  real = reinterpret_cast<NeapMpiEntry>(dlsym(library, NEAP_MPI_ENTRY))();
  if (const char* words = std::getenv("NEAP_TEST_FAULT"))
    std::sscanf(words, "%d:%d:%7s", &fault.rank, &fault.call, fault.kind);
  faulty = table();
  return &faulty;
}
