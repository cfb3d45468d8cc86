// A GPU through the driver's virtual-memory interface. Pages are allocation handles; addresses do not change.
//
// Model     Each device has one primary context, shared with the CUDA runtime and libtorch. Pages can be
//           exported as POSIX file descriptors and used by GPUDirect RDMA if the device supports it. The
//           device and every granted peer (grant_peer) can read and write all mapped pages, also after a
//           resume.
//
// Threads   any. The lock is held during mapping calls, never during a copy or a wait.
//
// Fork      a forked child has no CUDA context: every call fails with kUnsupported and changes nothing.
//
// Exit      calls after driver shutdown fail with kDeviceLost; the destructor then does nothing.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct CudaOptions {
  int ordinal = 0;
  Bytes capacity;  ///< limit of the bytes that create() provides; zero: the GPU's memory
};

class CudaDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

/// The number of GPUs that the driver sees. kUnsupported with the reason if the driver is missing.
[[nodiscard]] Result<int> cuda_device_count();
[[nodiscard]] Result<std::unique_ptr<CudaDevice>> make_cuda_device(const CudaOptions& options);
[[nodiscard]] inline Result<std::unique_ptr<CudaDevice>> make_cuda_device(int ordinal) {
  CudaOptions options;
  options.ordinal = ordinal;
  return make_cuda_device(options);
}

}  // namespace neap::device
