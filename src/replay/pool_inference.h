// Infers the private pools of segments that were freed before the snapshot.
//
// Why       A snapshot records the pool only for the segments that it contains. Segments of a CUDA
//           graph or a MemPool that were freed earlier have no recorded pool. Pools decide which
//           free blocks an allocation can use.
//
// Method    One pass over the recorded addresses. The allocator takes the best fit of its pool. If
//           a free block of segment T would have fitted better than the block taken from S, then S
//           and T are in different pools. Segments are assigned to pools without contradicting any
//           such proof (graph coloring, in order of time). The pool changes as rarely as possible
//           between consecutive allocations of a stream.
//
// Failure   if proofs contradict each other (changed settings, a truncated trace), the assignment
//           that reproduces more addresses is kept.
//
// Cost      about a microsecond per event; only for recordings that use private pools or are not
//           reproduced without them.
#pragma once

#include "replay/fidelity.h"

namespace neap::replay {

/// Assigns pools in `workload` if this reproduces more addresses.
Status infer_pools(Workload& workload, Bytes capacity);

/// Runs check_fidelity, and infer_pools before it if the recording is not reproduced otherwise.
[[nodiscard]] Result<Fidelity> reproduce(Workload& workload, const FidelityOptions& options = {});

}  // namespace neap::replay
