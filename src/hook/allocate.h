// Functions that the hooks and the PyTorch allocator share: freeing a region by address, and
// logging failures.
#pragma once

#include <cstddef>

#include "hook/runtime.h"

namespace neap::hook {

/// Frees the region that begins at `address`, as cudaFree does, and releases its memory to the
/// driver. False if no region begins there.
[[nodiscard]] Result<bool> free_region_at(const void* address);

/// Logs a failure that the caller's error code cannot express, at most a few times per process.
void log_hook_failure(std::string_view call, const Status& failure);

}  // namespace neap::hook
