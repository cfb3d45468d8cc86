// Collectives of GPU ranks over NCCL.
//
// Every call waits for its result on the host, and while it waits looks for errors of NCCL, for word
// of a failed rank, and at the clock: a rank that dies does not leave the others hanging.
// Memory    NCCL keeps buffers of its own on the card, outside Neap's ceiling as the CUDA context is
//           (docs/parallelism.md). Host tensors pass through 512 KiB of the card.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace neap::parallel {

[[nodiscard]] std::unique_ptr<Communicator> connect_nccl(const Environment& environment,
                                                         const ConnectOptions& options);

}  // namespace neap::parallel
