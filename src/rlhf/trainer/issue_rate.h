// Measures the host time to launch an operation, for time estimates in plans.
//
// Threads   one.
// Failure   throws what libtorch throws.
// Cost      a fraction of a second, and a few MiB of device memory.
#pragma once

#include <c10/core/Device.h>

namespace neap::rlhf {

/// Seconds per counted operation of a decoding step of a small model. On a GPU its kernels are
/// shorter than the launches, so this measures launches.
[[nodiscard]] double measure_issue_seconds(at::Device device);

}  // namespace neap::rlhf
