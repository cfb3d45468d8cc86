// The devices that conformance, fault, property and endurance suites run over. One that this machine
// lacks says why: such an instance skips, and the summary counts it.
#pragma once

#include <gtest/gtest.h>

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
  std::unique_ptr<LedgerDevice> real;  ///< null when the machine has none
  std::unique_ptr<FaultDevice> fault;  ///< over `real`, in suites that ask for it
  std::string skip_reason;
  [[nodiscard]] Device& device() const {
    if (fault != nullptr) return *fault;
    return *real;
  }
};
struct DeviceMaker {
  std::string name;
  Bytes unit;  ///< its granularity: suites count in these
  std::function<MadeDevice(Bytes capacity)> make;
};

/// Why a test was skipped prints the maker's name, not its bytes.
inline void PrintTo(const DeviceMaker& maker, std::ostream* out) {
  *out << maker.name;
}

inline DeviceMaker host_maker(std::string name, Bytes granularity) {
  return {std::move(name), granularity, [granularity](Bytes capacity) {
            HostOptions options;
            options.capacity = capacity;
            options.granularity = granularity;
            MadeDevice made;
            made.real = std::move(make_host_device(options)).value();
            return made;
          }};
}

inline DeviceMaker sim_maker() {
  return {"Sim", 2_MiB, [](Bytes capacity) {
            SimOptions options;
            options.capacity = capacity;
            MadeDevice made;
            made.real = std::move(make_sim_device(options)).value();
            return made;
          }};
}

inline DeviceMaker cuda_maker() {
  return {"Cuda", 2_MiB, [](Bytes capacity) {
            CudaOptions options;
            options.capacity = capacity;
            MadeDevice made;
            if (auto cuda = make_cuda_device(options); !cuda.ok()) {
              made.skip_reason = cuda.status().message();
            } else if (const Bytes unit = (*cuda)->info().granularity; unit != 2_MiB) {
              made.skip_reason = "the suites count in pages of 2 MiB, this card in other ones";
            } else {
              made.real = std::move(cuda).value();
            }
            return made;
          }};
}

/// The same device with a FaultDevice over it.
inline DeviceMaker with_faults(const DeviceMaker& below, std::string name) {
  return {std::move(name), below.unit, [make = below.make](Bytes capacity) {
            MadeDevice made = make(capacity);
            if (made.real != nullptr) made.fault = make_fault_device(*made.real);
            return made;
          }};
}

}  // namespace neap::device
