// Copies by two threads, one a direction: what a GPU's two copy engines do, for host memory.
#pragma once

#include <memory>

#include "device/device.h"

namespace neap::device {

/// `check` says whether a device range may be touched now; it runs in the caller's thread.
class HostCopyChecks {
 public:
  virtual ~HostCopyChecks() = default;
  virtual Status check_copy(const Copy& copy) const = 0;
};

[[nodiscard]] Result<std::unique_ptr<CopyQueue>> make_host_copy_queue(const HostCopyChecks& checks);

}  // namespace neap::device
