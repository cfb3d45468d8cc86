// The devices that a conformance or fault suite runs over. One that this machine lacks says why.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/fault/fault_device.h"
#include "device/host/host_device.h"
#include "device/sim/sim_device.h"

namespace neap::device {

struct MadeDevice {
  std::unique_ptr<Device> below;  ///< what `device` decorates, if it does
  std::unique_ptr<Device> device;
  std::string skip_reason;
};
struct DeviceMaker {
  std::string name;
  std::function<MadeDevice()> make;
};

inline std::vector<DeviceMaker> device_makers() {
  const auto host = [](Bytes granularity) {
    HostOptions options;
    options.capacity = 256_MiB;
    options.granularity = granularity;
    MadeDevice made;
    made.device = std::move(make_host_device(options)).value();
    return made;
  };
  return {
      {"Host2MiB", [host] { return host(2_MiB); }},
      {"Host64KiB", [host] { return host(64_KiB); }},
      {"Sim",
       [] {
         MadeDevice made;
         made.device = std::move(make_sim_device()).value();
         return made;
       }},
      {"FaultPassThrough",
       [host] {
         MadeDevice made;
         made.below = host(64_KiB).device;
         made.device = make_fault_device(*made.below);
         return made;
       }},
      {"Cuda",
       [] {
         CudaOptions options;
         options.capacity = 256_MiB;
         MadeDevice made;
         if (auto cuda = make_cuda_device(options); cuda.ok()) {
           made.device = std::move(cuda).value();
         } else {
           made.skip_reason = cuda.status().message();
         }
         return made;
       }},
  };
}

}  // namespace neap::device
