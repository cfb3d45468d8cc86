// Free ranges, found by address and by size. Adjacent ranges merge.
//
// Threads   none; the owner locks.
//
// Failure   none.
//
// Cost      logarithmic in the number of ranges.
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

  /// Adds [at, at+size). Merges with adjacent ranges inside [low, high).
  void add(Place at, Bytes size, Place low = 0, Place high = ~0ull);
  /// Removes [at, at+size), which lies in one free range.
  void remove(Place at, Bytes size);
  /// Takes the first `size` bytes of the smallest range that is large enough.
  std::optional<Place> take(Bytes size) {
    return take_if(size, [](Place) { return true; });
  }
  /// As take(), among the few smallest ranges; `fits` accepts or rejects an address.
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
  /// The free parts of [at, at+size), in order.
  [[nodiscard]] std::vector<std::pair<Place, Bytes>> within(Place at, Bytes size) const;
  [[nodiscard]] const std::map<Place, Bytes>& all() const { return ranges_; }

 private:
  void enter(Place at, Bytes size);
  void leave(std::map<Place, Bytes>::iterator it);

  std::map<Place, Bytes> ranges_;
  std::set<std::pair<std::uint64_t, Place>> by_size_;
};

}  // namespace neap::arena
