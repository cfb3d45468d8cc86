// A GPU through the driver's virtual-memory interface: pages are allocation handles, mapping keeps addresses.
//
// Model     One primary context a device, shared with the CUDA runtime and libtorch. Pages are exportable as POSIX file
//           descriptors and usable by GPUDirect RDMA where the device says so; each map is readable and writable by the
//           device and every granted peer (grant_peer), after a resume too.
// Threads   any. The lock is held over mapping calls, never over a copy or a wait.
// Fork      a forked child has no CUDA context: every call there fails with kUnsupported and changes nothing.
// Exit      calls after the driver shut down fail with kDeviceLost; the destructor then does nothing.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct CudaOptions {
  int ordinal = 0;
  Bytes capacity;  ///< most that create hands out; zero: what the card has
};

class CudaDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

/// GPUs that the driver sees; kUnsupported with the reason where there is no driver.
[[nodiscard]] Result<int> cuda_device_count();
[[nodiscard]] Result<std::unique_ptr<CudaDevice>> make_cuda_device(const CudaOptions& options);
[[nodiscard]] inline Result<std::unique_ptr<CudaDevice>> make_cuda_device(int ordinal) {
  CudaOptions options;
  options.ordinal = ordinal;
  return make_cuda_device(options);
}

}  // namespace neap::device
