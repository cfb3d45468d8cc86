// Copies by two threads, one for each direction, like the two copy engines of a GPU.
#pragma once

#include <memory>

#include "device/device.h"

namespace neap::device {

/// Tests whether a device range may be accessed now; runs on the caller's thread.
class HostCopyChecks {
 public:
  virtual ~HostCopyChecks() = default;
  virtual Status check_copy(const Copy& copy) const = 0;
};

/// `rate`: bytes a second of each direction; zero: unlimited.
[[nodiscard]] Result<std::unique_ptr<CopyQueue>> make_host_copy_queue(const HostCopyChecks& checks,
                                                                      double rate);

}  // namespace neap::device
