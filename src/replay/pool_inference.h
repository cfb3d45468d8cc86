// The private pools of segments that were freed before the snapshot.
//
// Why       A snapshot names the pool of the segments that it holds. Segments of a CUDA graph or a
//           MemPool that were freed earlier have no recorded pool, and pools decide which free
//           blocks an allocation can take.
//
// Method    One pass over the recorded addresses. The allocator takes the best fit of its pool, so
//           a free block of segment T that would have fitted better than the block taken from S
//           proves that S and T are in different pools. Segments are then assigned to pools such
//           that no proof is contradicted (graph coloring, in the order of time), with as few
//           changes of the pool between consecutive allocations of a stream as possible.
//
// Failure   where proofs contradict each other (settings that changed, a cut trace), the assignment
//           that reproduces more addresses is kept.
//
// Cost      about a microsecond an event; only for recordings that use private pools or that are
//           not reproduced without.
#pragma once

#include "replay/fidelity.h"

namespace neap::replay {

/// Assigns pools in `workload` if more addresses are reproduced with them than without.
Status infer_pools(Workload& workload, Bytes capacity);

/// check_fidelity, after infer_pools where the recording is not reproduced without it.
[[nodiscard]] Result<Fidelity> reproduce(Workload& workload, const FidelityOptions& options = {});

}  // namespace neap::replay
