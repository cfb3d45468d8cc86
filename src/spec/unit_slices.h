// How ranks divide units of a model: which elements of each are on which rank.
//
// Threads   values and functions without state.
// Cost      proportional to the number of units and ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/layout.h"

namespace neap::spec {

class UnitSlices {
 public:
  /// Elements of a unit that one rank has.
  struct Range {
    std::int64_t first = 0, count = 0;
  };

  UnitSlices() = default;
  /// Units of more than a tile are cut between tiles of so many elements, if `cuts`. Every rank has about as many
  /// elements of each of them, and of all units together. A table that is embedding and head is cut without regard to
  /// other units: the first and the last stage of a pipeline, which have it, cut it alike.
  UnitSlices(const std::vector<FlatUnit>& units, std::int64_t ranks, std::int64_t tile, bool cuts);

  /// Of each rank, one after another.
  [[nodiscard]] const std::vector<std::int64_t>& counts(std::size_t unit) const {
    return counts_.at(unit);
  }
  [[nodiscard]] Range range(std::size_t unit, std::int64_t rank) const;
  /// Where a unit's begin in a rank's elements of all units together.
  [[nodiscard]] std::int64_t slice_first(std::size_t unit, std::int64_t rank) const;
  /// Most elements that a rank has.
  [[nodiscard]] std::int64_t slice_elements() const { return slice_elements_; }

 private:
  std::vector<std::vector<std::int64_t>> counts_;  // one a unit
  std::int64_t slice_elements_ = 0;
};

/// Slices of units whose elements nothing sums over: as even as parameters are aligned.
[[nodiscard]] UnitSlices even_slices(const std::vector<FlatUnit>& units, std::int64_t ranks);

}  // namespace neap::spec
