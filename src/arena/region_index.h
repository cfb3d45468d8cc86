// All regions by address, for the lookups of allocators.
//
// Model     One sorted vector. A destroyed region leaves an empty entry, which is reused or removed
//           together with many others. Neither insert nor erase usually moves the whole vector.
//
// Threads   the caller holds the table lock.
//
// Failure   none.
//
// Cost      find: a binary search without branches. insert and erase: the same search, and
//           sometimes a move of the following entries.
#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace neap::arena {

struct Region;

class RegionIndex {
 public:
  void insert(device::Address at, Bytes size, const Region& region);
  void erase(device::Address at);
  /// The region that holds the address, or null.
  [[nodiscard]] const Region* find(device::Address at) const {
    if (entries_.empty()) return nullptr;
    // Without branches to mispredict it takes half the time of std::upper_bound.
    const Entry* entry = entries_.data();
    for (std::size_t left = entries_.size(); left > 1;) {
      const std::size_t half = left / 2;
      entry += entry[half].begin <= at ? half : 0;
      left -= half;
    }
    return at >= entry->begin && at < entry->end ? entry->region : nullptr;
  }
  /// Visits regions in address order.
  template <class F>
  void for_each(F&& visit) const {
    for (const Entry& entry : entries_)
      if (entry.region != nullptr) visit(*entry.region);
  }

 private:
  struct Entry {
    device::Address begin, end;
    const Region* region;  ///< null if the entry is empty; then no region begins in [begin, end)
  };
  std::vector<Entry> entries_;
  std::size_t empty_ = 0;
};

}  // namespace neap::arena
