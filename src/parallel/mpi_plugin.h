/* The interface of libneap_mpi.so: the few MPI calls that Neap needs, with plain pointers, so that
 * the program does not link MPI. It is loaded only by a CPU job of several ranks, or for the start
 * of a GPU job under mpirun.
 *
 * Bytes and offsets are int, as in MPI, so callers split large buffers. Functions that return int
 * return MPI's error code, 0 for success, or NEAP_MPI_TIMED_OUT. A group is a number; group 0 has
 * all ranks.
 *
 * Threads   one at a time. */
#ifndef NEAP_PARALLEL_MPI_PLUGIN_H
#define NEAP_PARALLEL_MPI_PLUGIN_H

#define NEAP_MPI_ABI 4
#define NEAP_MPI_TIMED_OUT (-1)

typedef struct NeapMpi {
  int abi;
  /* Starts MPI, once per process. A call that waits longer than `timeout_seconds` for other ranks
   * times out. Higher ranks time out slightly later, because the first rank that does ends the
   * others. The timeout restarts when any rank calls show_life(). */
  int (*start)(double timeout_seconds, int* rank, int* size);
  /* Ranks with the same color become a group, in the order of their numbers in `group`. Every rank
   * of `group` calls it. */
  int (*split)(int group, int color, int* result);
  /* Sends in_bytes[r] bytes at in + in_offsets[r] to rank r of the group, and receives out_bytes[r]
   * bytes from it. */
  int (*all_to_all)(int group, const void* in, const int* in_bytes, const int* in_offsets,
                    void* out, const int* out_bytes, const int* out_offsets);
  /* Rank r's part has bytes[r] bytes at data + offsets[r]. On return every rank has all parts. */
  int (*all_gather)(int group, void* data, const int* bytes, const int* offsets);
  int (*broadcast)(int group, void* data, int bytes, int root);
  /* Point to point, in the order of calls. */
  int (*send)(int group, const void* data, int bytes, int to);
  int (*receive)(int group, void* data, int bytes, int from);
  int (*barrier)(int group);
  /* Tells all ranks that this one is working, which restarts their timeouts. */
  int (*show_life)(void);
  /* After a timeout: sets `missing[r]` to 1 for each rank of the job that is not waiting. */
  void (*missing)(char* missing);
  /* Ends every rank of the job; does not return. */
  void (*abort)(int exit_code);
  int (*finish)(void);
  /* MPI's text for an error code, truncated to `size` bytes. */
  void (*describe)(int error, char* text, int size);
} NeapMpi;

/* The library's only symbol. */
#define NEAP_MPI_ENTRY "neap_mpi_entry"
typedef const NeapMpi* (*NeapMpiEntry)(void);

#endif
