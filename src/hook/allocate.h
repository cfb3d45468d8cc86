// What the hooks and PyTorch's allocator share: from a request to a region, and back.
#pragma once

#include <cstddef>

#include "hook/runtime.h"

namespace neap::hook {

/// Frees the region that begins at `address`, as cudaFree does: its memory is the driver's again.
/// False when no region does.
[[nodiscard]] Result<bool> free_region_at(const void* address);

/// Logs a failure that the caller cannot be told in full, at most a few times a process.
void log_hook_failure(std::string_view call, const Status& failure);

}  // namespace neap::hook
