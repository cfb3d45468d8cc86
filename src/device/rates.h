// Measured rates of a device and its link to the host.
#pragma once

namespace neap::device {

struct Rates {
  double to_host = 0, to_device = 0;  ///< bytes per second through pinned memory
  double both = 0;                    ///< sum of both directions at once
  double memory = 0;                  ///< bytes per second of device memory, read and written
  double remap = 0;                   ///< seconds per byte to unmap and map again
};

}  // namespace neap::device
