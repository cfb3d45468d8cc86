// Every region by address, for lookups that allocators make.
//
// Model     One sorted vector. What is destroyed leaves its entry behind as empty, to be written over or
//           cleared away with many others, so that neither regions nor their ends move the whole vector.
// Threads   none: the table's lock.   Failure   none.
// Cost      find: a binary search without branches. insert and erase: the same, and now and then a move of
//           what lies behind.
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
  /// The region that holds the address; null where there is none.
  [[nodiscard]] const Region* find(device::Address at) const {
    if (entries_.empty()) return nullptr;
    // Without a branch to guess wrong: half the time of std::upper_bound.
    const Entry* entry = entries_.data();
    for (std::size_t left = entries_.size(); left > 1;) {
      const std::size_t half = left / 2;
      entry += entry[half].begin <= at ? half : 0;
      left -= half;
    }
    return at >= entry->begin && at < entry->end ? entry->region : nullptr;
  }
  /// In the order of their addresses.
  template <class F>
  void for_each(F&& visit) const {
    for (const Entry& entry : entries_)
      if (entry.region != nullptr) visit(*entry.region);
  }

 private:
  struct Entry {
    device::Address begin, end;
    const Region* region;  ///< null: empty, and nothing else begins within
  };
  std::vector<Entry> entries_;
  std::size_t empty_ = 0;
};

}  // namespace neap::arena
