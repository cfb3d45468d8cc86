// Measures the rates of a device and its link for plans. `neap doctor` runs and stores it.
//
// Threads   one.
// Failure   kOutOfDeviceMemory or kOutOfHostMemory without room for the copies; nothing is
//           left behind.
// Cost      two seconds on a GPU, most of it for pinning host memory.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "device/rates.h"

namespace neap::bench {

/// Medians over copies of 1 GiB, or of an eighth of the free memory if that is less. `device` must
/// be idle.
[[nodiscard]] Result<device::Rates> measure_rates(device::Device& device);

}  // namespace neap::bench
