#include "arena/region_index.h"

#include <algorithm>

namespace neap::arena {

void RegionIndex::insert(device::Address at, Bytes size, const Region& region) {
  const Entry entry{at, at + size.count(), &region};
  const auto below = [](const Entry& e, device::Address address) { return e.begin < address; };
  auto first = std::lower_bound(entries_.begin(), entries_.end(), at, below);
  const auto last = std::lower_bound(first, entries_.end(), entry.end, below);
  // Regions do not overlap, so all entries of [first, last) are empty. The new entry reuses one of
  // them, and no other empty entry may hide it.
  if (first == last && first != entries_.begin() && std::prev(first)->region == nullptr) --first;
  if (first != entries_.end() && first->region == nullptr) {
    *first = entry;
    --empty_;
    if (last > first + 1) {
      empty_ -= static_cast<std::size_t>(last - (first + 1));
      entries_.erase(first + 1, last);
    }
    return;
  }
  entries_.insert(first, entry);
}

void RegionIndex::erase(device::Address at) {
  const auto it =
      std::lower_bound(entries_.begin(), entries_.end(), at,
                       [](const Entry& e, device::Address address) { return e.begin < address; });
  it->region = nullptr;
  // Clean up when half of the entries are empty: its cost is then spread over as many cheap erases.
  if (++empty_ * 2 <= entries_.size()) return;
  std::erase_if(entries_, [](const Entry& e) { return e.region == nullptr; });
  empty_ = 0;
}

}  // namespace neap::arena
