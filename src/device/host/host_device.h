// A device made of this process's memory: pages are memfd files, mapping is mmap.
//
// Model     Real memory at real addresses. Contents survive unmap and map. Two maps of one page alias it.
//           Access to unmapped memory faults. create fails with kOutOfDeviceMemory beyond the chosen
//           capacity. Memory is allocated at first touch and freed when a page is released and unmapped.
//
// Threads   any; one lock, never held while bytes are copied.
//
// Failure   kOutOfHostMemory names the system limit that was reached (descriptors, mappings).
//
// Fork      a child shares the pages with its parent (shared mappings, no copy on write), so the parent
//           sees the child's writes.
//
// Limits    one descriptor per page and one mapping per map. With a granularity of 64 KiB, regions should
//           have few pages (the arena does that). The soft limit on open files is raised when needed.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct HostOptions {
  Bytes capacity = 1_GiB;
  Bytes granularity = 2_MiB;  ///< a power of two, at least the system's page size
  std::string name = "host memory";
  int ordinal = 0;
  /// Bytes per second in each direction of a copy queue, to imitate a GPU's link; zero: as fast as
  /// memory.
  double link_rate = 0;
};

class HostDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

[[nodiscard]] Result<std::unique_ptr<HostDevice>> make_host_device(HostOptions options = {});

}  // namespace neap::device
