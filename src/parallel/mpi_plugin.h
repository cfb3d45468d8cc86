/* What libneap_mpi.so offers: the few calls of MPI that Neap needs, over plain pointers, so that the
 * program itself links no MPI. Loaded only by a CPU job of several ranks, or for the start of a GPU
 * job under mpirun.
 *
 * Bytes and offsets are int, as in MPI: callers cut large buffers. Functions that return int give MPI's error code, 0 for
 * success, or NEAP_MPI_TIMED_OUT. A group is a number: 0 has all ranks. One thread at a time. */
#ifndef NEAP_PARALLEL_MPI_PLUGIN_H
#define NEAP_PARALLEL_MPI_PLUGIN_H

#define NEAP_MPI_ABI 4
#define NEAP_MPI_TIMED_OUT (-1)

typedef struct NeapMpi {
  int abi;
  /* Starts MPI, once a process. A call that waits longer than `timeout_seconds` for other ranks ends as timed out, a
   * little later on ranks with higher numbers: the first one that gives up ends the others. Time begins again when any
   * rank shows that it works. */
  int (*start)(double timeout_seconds, int* rank, int* size);
  /* Ranks that give the same color become a group, in the order of their numbers in `group`. Every rank of
   * that calls it. */
  int (*split)(int group, int color, int* result);
  /* in_bytes[r] at in + in_offsets[r] go to rank r of the group; out_bytes[r] come from it. */
  int (*all_to_all)(int group, const void* in, const int* in_bytes, const int* in_offsets,
                    void* out, const int* out_bytes, const int* out_offsets);
  /* Rank r's part is `bytes[r]` at data + offsets[r]; on return every rank has all parts. */
  int (*all_gather)(int group, void* data, const int* bytes, const int* offsets);
  int (*broadcast)(int group, void* data, int bytes, int root);
  /* Between two ranks of the group, in the order of the calls. */
  int (*send)(int group, const void* data, int bytes, int to);
  int (*receive)(int group, void* data, int bytes, int from);
  int (*barrier)(int group);
  /* Tells all ranks that this one works. */
  int (*show_life)(void);
  /* After a call that timed out: `missing[r]` is 1 for each rank of the job that does not wait for others. */
  void (*missing)(char* missing);
  /* Ends every rank of the job; does not return. */
  void (*abort)(int exit_code);
  int (*finish)(void);
  /* MPI's words for an error code, cut to `size` bytes. */
  void (*describe)(int error, char* text, int size);
} NeapMpi;

/* The library's one symbol. */
#define NEAP_MPI_ENTRY "neap_mpi_entry"
typedef const NeapMpi* (*NeapMpiEntry)(void);

#endif
