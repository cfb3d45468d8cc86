// Copies on two threads, one per direction, like the two copy engines of a GPU.
#pragma once

#include <memory>

#include "device/device.h"

namespace neap::device {

/// Checks whether a device range may be accessed now. Runs on the caller's thread.
class HostCopyChecks {
 public:
  virtual ~HostCopyChecks() = default;
  virtual Status check_copy(const Copy& copy) const = 0;
};

/// `rate`: bytes per second in each direction; zero: unlimited.
[[nodiscard]] Result<std::unique_ptr<CopyQueue>> make_host_copy_queue(const HostCopyChecks& checks,
                                                                      double rate);

}  // namespace neap::device
