#include "arena/free_ranges.h"

#include <algorithm>

namespace neap::arena {

void FreeRanges::add(Place at, Bytes size, Place low, Place high) {
  if (size.is_zero()) return;
  const auto next = ranges_.lower_bound(at);
  if (next != ranges_.end() && next->first == at + size.count() && next->first < high) {
    size += next->second;
    leave(next);
  }
  const auto after = ranges_.lower_bound(at);
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->first >= low && before->first + before->second.count() == at) {
      at = before->first;
      size += before->second;
      leave(before);
    }
  }
  enter(at, size);
}

void FreeRanges::remove(Place at, Bytes size) {
  const auto it = std::prev(ranges_.upper_bound(at));
  const Place begin = it->first;
  const Place end = begin + it->second.count();
  leave(it);
  if (begin < at) enter(begin, Bytes(at - begin));
  if (at + size.count() < end) enter(at + size.count(), Bytes(end - at - size.count()));
}

std::vector<std::pair<FreeRanges::Place, Bytes>> FreeRanges::within(Place at, Bytes size) const {
  std::vector<std::pair<Place, Bytes>> found;
  const Place end = at + size.count();
  auto it = ranges_.upper_bound(at);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < end; ++it) {
    const Place from = std::max(it->first, at);
    const Place to = std::min(it->first + it->second.count(), end);
    if (from < to) found.emplace_back(from, Bytes(to - from));
  }
  return found;
}

void FreeRanges::enter(Place at, Bytes size) {
  ranges_.emplace(at, size);
  by_size_.emplace(size.count(), at);
}

void FreeRanges::leave(std::map<Place, Bytes>::iterator it) {
  by_size_.erase({it->second.count(), it->first});
  ranges_.erase(it);
}

}  // namespace neap::arena
