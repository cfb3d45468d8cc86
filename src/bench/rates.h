// Rates of a device and its link, for plans: what `neap doctor` measures and keeps.
//
// Threads   one.
// Failure   kOutOfDeviceMemory or kOutOfHostMemory where there is no room for the copies; nothing is
//           left behind.
// Cost      two seconds on a GPU, most of it to pin host memory.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "device/rates.h"

namespace neap::bench {

/// Medians over copies of 1 GiB or an eighth of the free memory, whichever is less. `device` must
/// have no other work.
[[nodiscard]] Result<device::Rates> measure_rates(device::Device& device);

}  // namespace neap::bench
