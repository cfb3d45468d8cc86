// Asynchronous copies on two streams, one per direction.
#pragma once

#include <memory>

#include "device/cuda/context.h"
#include "device/device.h"

namespace neap::device {

[[nodiscard]] Result<std::unique_ptr<CopyQueue>> make_cuda_copy_queue(const cuda::Card& card);

}  // namespace neap::device
