// Large allocations of host memory whose failure is reported before the kernel kills the process.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace neap::arena {

/// What the system can give now without swapping or killing: the smaller of the machine's and the
/// cgroup's figures.
[[nodiscard]] Bytes available_host_memory();

/// Address space for `size` in huge pages. No memory is taken before it is touched.
[[nodiscard]] Result<std::byte*> map_host(Bytes size);
/// Frees the memory, with up to `threads` threads if it is large.
void unmap_host(std::byte* at, Bytes size, unsigned threads);

/// Takes the memory of [at, at+size). Fails instead of being killed if the kernel can tell.
Status populate_host(std::byte* at, Bytes size);

}  // namespace neap::arena
