// A device that only counts: addresses from a fixed base, no memory behind them.
//
// Model     Same answers as host/ and cuda/ about capacity, misuse and mappings; addresses are the
//           same in every run; copies and fills check their arguments and move nothing.
// Threads   any; one lock.   Cost   a map lookup a call.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct SimOptions {
  Bytes capacity = 80_GiB;
  Bytes granularity = 2_MiB;
  std::string name = "simulated device";
  int ordinal = 0;
  Address first_address = 0x7f0000000000;  ///< of the first reservation
};

class SimDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

[[nodiscard]] Result<std::unique_ptr<SimDevice>> make_sim_device(SimOptions options = {});

}  // namespace neap::device
