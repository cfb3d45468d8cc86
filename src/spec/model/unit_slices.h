// How ZeRO shards the units of a model: which elements of each unit are on which rank.
//
// Threads   values and stateless functions.
// Cost      proportional to the number of units and ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/model/layout.h"

namespace neap::spec {

class UnitSlices {
 public:
  /// Elements of a unit on one rank.
  struct Range {
    std::int64_t first = 0, count = 0;
  };

  UnitSlices() = default;
  /// With `cuts`, units larger than a tile are cut between tiles of `tile` elements. Every rank has
  /// about the same number of elements of each unit and in total. A tied embedding is cut
  /// independently of other units, so that the first and last pipeline stage cut their copies in
  /// the same way.
  UnitSlices(const std::vector<FlatUnit>& units, std::int64_t ranks, std::int64_t tile, bool cuts);

  /// Elements of each rank, in the order of ranks.
  [[nodiscard]] const std::vector<std::int64_t>& counts(std::size_t unit) const {
    return counts_.at(unit);
  }
  [[nodiscard]] Range range(std::size_t unit, std::int64_t rank) const;
  /// Where a unit's elements start among a rank's elements of all units.
  [[nodiscard]] std::int64_t slice_first(std::size_t unit, std::int64_t rank) const;
  /// The largest number of elements of any rank.
  [[nodiscard]] std::int64_t slice_elements() const { return slice_elements_; }

 private:
  std::vector<std::vector<std::int64_t>> counts_;  // one per unit
  std::int64_t slice_elements_ = 0;
};

/// Shards that are as even as parameter alignment allows, for units that need no sums over
/// elements.
[[nodiscard]] UnitSlices even_slices(const std::vector<FlatUnit>& units, std::int64_t ranks);

}  // namespace neap::spec
