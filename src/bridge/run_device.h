// The device that a run opens, and libtorch's settings that follow from the choice.
//
// Threads   once, before the first tensor.   Failure   neap::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "device/device.h"
#include "plan/device_choice.h"
#include "spec/job.h"

namespace neap::bridge {

/// The choice of a run: GPUs are those that libtorch can use.
[[nodiscard]] plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config);

/// The opened device and how libtorch names it.
struct RunDevice {
  std::shared_ptr<device::Device> device;
  at::Device torch{at::kCPU};
  at::ScalarType dtype = at::kFloat;  ///< of forward and backward
};
/// Opens what was chosen and sets libtorch's number of threads to the choice's.
[[nodiscard]] RunDevice open_device(const spec::Job& job, const plan::DeviceChoice& choice);

}  // namespace neap::bridge
