// The share of host memory that a run may use for offloaded data.
//
// Threads   a stateless function.
#pragma once

#include <algorithm>

#include "base/bytes.h"

namespace neap::plan {

/// The part of free host memory for offloaded data. A run also needs memory for its libraries, a
/// GPU's context, batches and file buffers.
[[nodiscard]] constexpr Bytes for_copies(Bytes free) {
  return free - std::min(free / 4, 4_GiB);
}

}  // namespace neap::plan
