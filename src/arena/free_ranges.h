// Ranges that are free, found by place and by size; neighbours merge.
//
// Threads   none: whoever owns it locks.   Failure   none.   Cost   logarithmic in their number.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace neap::arena {

class FreeRanges {
 public:
  using Place = std::uint64_t;

  /// [at, at+size) is free. Merges with its neighbours inside [low, high).
  void add(Place at, Bytes size, Place low = 0, Place high = ~0ull);
  /// [at, at+size), which lies in one free range, is free no more.
  void remove(Place at, Bytes size);
  /// The first `size` of the smallest range that has them.
  std::optional<Place> take(Bytes size) {
    return take_if(size, [](Place) { return true; });
  }
  /// The same, of the smallest few, where `fits` agrees to the place.
  template <class F>
  std::optional<Place> take_if(Bytes size, F&& fits) {
    constexpr int kTries = 16;
    int tries = 0;
    for (auto it = by_size_.lower_bound({size.count(), 0}); it != by_size_.end() && tries < kTries;
         ++it, ++tries) {
      const Place at = it->second;
      if (!fits(at)) continue;
      remove(at, size);
      return at;
    }
    return std::nullopt;
  }
  /// What of [at, at+size) is free, in order.
  [[nodiscard]] std::vector<std::pair<Place, Bytes>> within(Place at, Bytes size) const;
  [[nodiscard]] const std::map<Place, Bytes>& all() const { return ranges_; }

 private:
  void enter(Place at, Bytes size);
  void leave(std::map<Place, Bytes>::iterator it);

  std::map<Place, Bytes> ranges_;
  std::set<std::pair<std::uint64_t, Place>> by_size_;
};

}  // namespace neap::arena
