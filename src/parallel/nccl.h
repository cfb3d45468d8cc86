// Collectives of GPU ranks over NCCL.
//
// Every call waits on the host for its result. While it waits it checks for NCCL's errors, for
// reports of failed ranks, and for the timeout. So a rank that dies does not block the others.
//
// Threads   one at a time.
// Failure   Error, as parallel/communicator.h says.
// Memory    NCCL allocates buffers on the GPU itself; the plan counts them as the tag ranks.nccl.
//           Host tensors pass through 512 KiB of device memory.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace neap::parallel {

[[nodiscard]] std::unique_ptr<Communicator> connect_nccl(const Environment& environment,
                                                         const ConnectOptions& options);

}  // namespace neap::parallel
