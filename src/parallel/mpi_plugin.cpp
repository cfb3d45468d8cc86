// libneap_mpi.so implements parallel/mpi_plugin.h over MPI. Only this file and mpi_waits include
// mpi.h.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "parallel/mpi_plugin.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "parallel/mpi_waits.h"

namespace {

neap::parallel::MpiWaits waits;

// Groups 1, 2, ...; they live until MPI ends.
std::vector<MPI_Comm> more_groups;

MPI_Comm comm_of(int group) {
  return group == 0 ? MPI_COMM_WORLD : more_groups[static_cast<std::size_t>(group) - 1];
}

int start(double timeout_seconds, int* rank, int* size) {
  // The arena unmaps and remaps pages at the same addresses, which would make a cache of pinned
  // pages stale.
  setenv("OMPI_MCA_mpi_leave_pinned", "0", 0);
  int provided = 0;
  if (const int e = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); e != 0)
    return e;
  if (const int e = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); e != 0) return e;
  if (const int e = MPI_Comm_rank(MPI_COMM_WORLD, rank); e != 0) return e;
  if (const int e = MPI_Comm_size(MPI_COMM_WORLD, size); e != 0) return e;
  return waits.begin(timeout_seconds);
}

int barrier(int group) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Ibarrier(comm_of(group), &request), request);
}

int split(int group, int color, int* result) {
  // MPI_Comm_split has no timeout, so ranks meet at a barrier first
  if (const int e = barrier(group); e != 0) return e;
  MPI_Comm made = MPI_COMM_NULL;
  if (const int e = MPI_Comm_split(comm_of(group), color, 0, &made); e != 0) return e;
  if (const int e = MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN); e != 0) return e;
  more_groups.push_back(made);
  *result = static_cast<int>(more_groups.size());
  return 0;
}

int all_to_all(int group, const void* in, const int* in_bytes, const int* in_offsets, void* out,
               const int* out_bytes, const int* out_offsets) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Ialltoallv(in, in_bytes, in_offsets, MPI_BYTE, out, out_bytes,
                                     out_offsets, MPI_BYTE, comm_of(group), &request),
                      request);
}

int all_gather(int group, void* data, const int* bytes, const int* offsets) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, bytes, offsets,
                                      MPI_BYTE, comm_of(group), &request),
                      request);
}

int broadcast(int group, void* data, int bytes, int root) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Ibcast(data, bytes, MPI_BYTE, root, comm_of(group), &request), request);
}

int send(int group, const void* data, int bytes, int to) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Isend(data, bytes, MPI_BYTE, to, 0, comm_of(group), &request), request);
}

int receive(int group, void* data, int bytes, int from) {
  MPI_Request request = MPI_REQUEST_NULL;
  return waits.finish(MPI_Irecv(data, bytes, MPI_BYTE, from, 0, comm_of(group), &request), request);
}

int show_life() {
  return waits.show_life();
}

void missing(char* ranks) {
  waits.missing(ranks);
}

void abort_job(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

int finish() {
  if (const int e = barrier(0); e != 0) return e;
  return MPI_Finalize();
}

void describe(int error, char* text, int size) {
  char words[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(error, words, &length);
  std::strncpy(text, words, static_cast<std::size_t>(size) - 1);
  text[size - 1] = '\0';
}

constexpr NeapMpi kTable{NEAP_MPI_ABI, start,     split,   all_to_all, all_gather,
                         broadcast,    send,      receive, barrier,    show_life,
                         missing,      abort_job, finish,  describe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const NeapMpi* neap_mpi_entry() {
  return &kTable;
}
