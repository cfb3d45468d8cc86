// A device made of this process's memory: pages are memfd files, mapping is mmap.
//
// Model     Real memory at real addresses. Contents survive unmap and map, two maps of one page alias,
//           access to unmapped memory faults, and create fails with kOutOfDeviceMemory beyond the chosen
//           capacity. Memory is taken at first touch and freed when a page is released and unmapped.
//
// Threads   any; one lock, never held while bytes are copied.
//
// Failure   kOutOfHostMemory names the system limit that was reached (descriptors, mappings).
//
// Fork      a child shares the pages with its parent (shared mappings, no copy on write): its writes
//           are visible to the parent.
//
// Limits    one descriptor for each page and one mapping for each map. With a granularity of 64 KiB,
//           regions should have few pages (the arena does that). The soft limit on open files is raised
//           when needed.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct HostOptions {
  Bytes capacity = 1_GiB;
  Bytes granularity = 2_MiB;  ///< a power of two, at least the system's page size
  std::string name = "host memory";
  int ordinal = 0;
  /// Bytes a second of each direction of a copy queue, as of a GPU's link; zero: as fast as memory.
  double link_rate = 0;
};

class HostDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

[[nodiscard]] Result<std::unique_ptr<HostDevice>> make_host_device(HostOptions options = {});

}  // namespace neap::device
