// Reserves the addresses of one tag in a few large zones. Regions that move together are then
// adjacent, and one driver call covers many of them.
//
// Threads   the caller holds the table lock.
//
// Failure   that of Device::reserve.
//
// Cost      logarithmic in the number of holes; a driver call when a zone is full.
#pragma once

#include <map>

#include "arena/free_ranges.h"
#include "device/device.h"

namespace neap::arena {

class AddressSpace {
 public:
  explicit AddressSpace(device::Device& device) : device_(device) {}
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  [[nodiscard]] Result<device::Address> take(Bytes size);
  void give(device::Address at, Bytes size);
  /// Returns zones without a used range to the device.
  Status clear();
  [[nodiscard]] bool empty() const { return zones_.empty(); }

 private:
  struct Zone {
    device::Address at = 0;
    Bytes size;
    Bytes guard;
    Bytes used;
  };
  Zone& zone_of(device::Address at);

  device::Device& device_;
  std::map<device::Address, Zone> zones_;
  FreeRanges holes_;
};

}  // namespace neap::arena
