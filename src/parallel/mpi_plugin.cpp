// libneap_mpi.so: MPI behind parallel/mpi_plugin.h. The only file of Neap that sees mpi.h.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "parallel/mpi_plugin.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>

namespace {

int start(int* rank, int* size) {
  // Regions come and go at the same addresses: a cache of pinned pages would hold pages that are no
  // longer there.
  setenv("OMPI_MCA_mpi_leave_pinned", "0", 0);
  int provided = 0;
  if (const int e = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); e != 0)
    return e;
  if (const int e = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); e != 0) return e;
  if (const int e = MPI_Comm_rank(MPI_COMM_WORLD, rank); e != 0) return e;
  return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int all_to_all(const void* in, const int* in_bytes, const int* in_offsets, void* out,
               const int* out_bytes, const int* out_offsets) {
  return MPI_Alltoallv(in, in_bytes, in_offsets, MPI_BYTE, out, out_bytes, out_offsets, MPI_BYTE,
                       MPI_COMM_WORLD);
}

int all_gather(void* data, const int* bytes, const int* offsets) {
  return MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, bytes, offsets, MPI_BYTE,
                        MPI_COMM_WORLD);
}

int broadcast(void* data, int bytes, int root) {
  return MPI_Bcast(data, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

int barrier() {
  return MPI_Barrier(MPI_COMM_WORLD);
}

void abort_job(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

int finish() {
  return MPI_Finalize();
}

void describe(int error, char* text, int size) {
  char words[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(error, words, &length);
  std::strncpy(text, words, static_cast<std::size_t>(size) - 1);
  text[size - 1] = '\0';
}

constexpr NeapMpi kTable{NEAP_MPI_ABI, start,     all_to_all, all_gather, broadcast,
                         barrier,      abort_job, finish,     describe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const NeapMpi* neap_mpi_entry() {
  return &kTable;
}
