// What a device and its link to the host reach, as measured on them.
#pragma once

namespace neap::device {

struct Rates {
  double to_host = 0, to_device = 0;  ///< bytes a second through pinned memory
  double both = 0;                    ///< sum of both directions at once
  double memory = 0;                  ///< bytes a second of device memory, read and written
  double remap = 0;                   ///< seconds to unmap a byte and map it again
};

}  // namespace neap::device
