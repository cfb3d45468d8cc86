// Large host allocations that report failure before the kernel kills the process.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace neap::arena {

/// Bytes that the system can provide without swapping or killing: the smaller of the machine's and
/// the cgroup's figures.
[[nodiscard]] Bytes available_host_memory();

/// Reserves address space for `size` in huge pages. Memory is allocated at the first touch.
[[nodiscard]] Result<std::byte*> map_host(Bytes size);
/// Frees the memory, with up to `threads` threads if it is large.
void unmap_host(std::byte* at, Bytes size, unsigned threads);

/// Allocates the memory of [at, at+size). If the kernel supports it, it fails instead of being
/// killed.
Status populate_host(std::byte* at, Bytes size);

}  // namespace neap::arena
