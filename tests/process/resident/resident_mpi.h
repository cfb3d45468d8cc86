/* resident_mpi.cpp has this function in addition to the interface of libneap_mpi.so. */
#ifndef NEAP_RESIDENT_MPI_H
#define NEAP_RESIDENT_MPI_H

/* Ends MPI if it has begun; returns MPI's error code. */
#define RESIDENT_MPI_END "resident_mpi_end"
typedef int (*ResidentMpiEnd)(void);

#endif
