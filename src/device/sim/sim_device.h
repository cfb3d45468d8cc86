// A device that only counts: addresses start at a fixed base and have no memory.
//
// Model     Capacity, misuse and mappings give the same results as host/ and cuda/. Addresses are the same
//           in every run. Copies and fills check their arguments and do nothing.
//
// Threads   any; one lock.
//
// Cost      one map lookup per call.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct SimOptions {
  Bytes capacity = 80_GiB;
  Bytes granularity = 2_MiB;
  std::string name = "simulated device";
  int ordinal = 0;
  Address first_address = 0x7f0000000000;  ///< address of the first reservation
};

class SimDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

[[nodiscard]] Result<std::unique_ptr<SimDevice>> make_sim_device(SimOptions options = {});

}  // namespace neap::device
