// What the program takes to start an operation, for plans that count seconds.
//
// Threads   one.   Failure   throws what libtorch throws.
// Cost      a fraction of a second, and a few MiB of the device.
#pragma once

#include <c10/core/Device.h>

namespace neap::rlhf {

/// Seconds that a decoding step of a small model takes for each of the operations that a plan counts
/// of it. On a GPU the kernels are shorter than the program's part, which is what is measured.
[[nodiscard]] double measure_issue_seconds(at::Device device);

}  // namespace neap::rlhf
