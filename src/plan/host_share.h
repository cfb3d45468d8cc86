// What a run leaves of host memory to copies of what left the device.
#pragma once

#include <algorithm>

#include "base/bytes.h"

namespace neap::plan {

/// Of free host memory. In addition to copies a run holds its libraries, a GPU's context, batches and buffers of files.
[[nodiscard]] constexpr Bytes for_copies(Bytes free) {
  return free - std::min(free / 4, 4_GiB);
}

}  // namespace neap::plan
