// Large pieces of this process's memory, taken without surprises.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace neap::arena {

/// What the system could give now without swapping or killing: the machine's and the cgroup's view,
/// the smaller one.
[[nodiscard]] Bytes available_host_memory();

/// Address space for `size` in huge pages; nothing is taken before it is touched.
[[nodiscard]] Result<std::byte*> map_host(Bytes size);
/// Gives the memory back, with up to `threads` threads where there is much of it.
void unmap_host(std::byte* at, Bytes size, unsigned threads);

/// Takes the memory behind [at, at+size). Fails instead of being killed where the kernel can tell.
Status populate_host(std::byte* at, Bytes size);

}  // namespace neap::arena
