// Backups in files: copies between device memory and files, through staging buffers.
//
// Model     Bytes are copied from the device to a staging buffer and written to the file. Copies
//           and writes of different pieces overlap.
//
// Threads   one call at a time per queue; worker threads live as long as a call.
//
// Failure   that of the file (arena/disk_file.h) and of the queue; kOutOfHostMemory without memory
//           for staging.
//
// Cost      host memory for at most 64 pieces of kDiskPiece while it runs.
#pragma once

#include <memory>
#include <vector>

#include "arena/disk_file.h"
#include "arena/host_pool.h"
#include "device/device.h"

namespace neap::arena {

/// A range of device memory and its place in a file.
struct DiskCopy {
  device::Address device = 0;
  std::shared_ptr<DiskFile> file;
  Bytes offset;
  Bytes size;
};

/// Runs the copies in pieces of one staging buffer each. Staging memory comes from `hosts`.
Status copy_to_disk(const std::vector<DiskCopy>& copies, HostPool& hosts, device::CopyQueue& queue);
Status copy_from_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                      device::CopyQueue& queue);

}  // namespace neap::arena
