// A "device" made of this process's own memory: pages are memfd files, mapping is mmap.
//
// Model     Real memory at real addresses: contents survive unmap and map, two maps of one page
//           alias, touching what is unmapped or was not given access faults, and create fails with
//           kOutOfDeviceMemory when the chosen capacity is used up. Memory is taken when it is
//           first touched and given back when a page is released and unmapped.
// Threads   any; one lock, never held while bytes are copied.
// Failure   kOutOfHostMemory names the system's limit that was met (descriptors, mappings).
// Fork      a child shares the pages with its parent (they are shared mappings): it may read, and
//           what it writes the parent sees, as with GPU memory there is no copy on write.
// Limits    a descriptor a page and a mapping a map: with granularity 64 KiB keep regions in few
//           pages (the arena does). The soft limit on open files is raised when pages need it.
#pragma once

#include <memory>

#include "device/ledger_device.h"

namespace neap::device {

struct HostOptions {
  Bytes capacity = 1_GiB;
  Bytes granularity = 2_MiB;  ///< a power of two, at least the system's page
  std::string name = "host memory";
  int ordinal = 0;
};

class HostDevice : public LedgerDevice {
 protected:
  using LedgerDevice::LedgerDevice;
};

[[nodiscard]] Result<std::unique_ptr<HostDevice>> make_host_device(HostOptions options = {});

}  // namespace neap::device
