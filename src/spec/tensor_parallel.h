// How the ranks along the axis "tensor" divide a model (Shoeybi et al. 2019): each has some heads of attention,
// some columns of the MLP and some rows of the vocabulary, and what is not divided whole.
//
// A rank's part is an Architecture of its own, so that layouts, tags, optimizer states and operations follow
// from its sizes. The cut of a parameter says which of the whole model's elements are in it: checkpoints are
// written and read by cuts. Parts of all ranks have the same shapes.
//
// Key heads that are fewer than ranks are on several: each computes the gradient by its own queries.
//
// Threads   values and functions without state.   Failure   kInvalidArgument, with the sizes that would do.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/architecture.h"
#include "spec/layout.h"

namespace neap::spec {

/// The part of `whole`, which is not divided, that a rank of the axis has. `name`: the model's, for messages.
[[nodiscard]] Result<Architecture> part_of(const Architecture& whole, const TensorShard& shard,
                                           std::string_view name);

/// Along which dimension ranks divide a parameter of an architecture; -1: each has all of it.
[[nodiscard]] int cut_dimension(const Architecture& a, Module module, Part part);

/// Where a rank's part of a parameter is in the whole: along one dimension some ranges, one after another.
struct ParameterCut {
  struct Range {
    std::int64_t first = 0, count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  int dimension = -1;  ///< -1: the rank has all of it
  std::vector<Range> ranges;
  [[nodiscard]] bool cuts() const { return dimension >= 0; }
};
/// `shard` of the parameter of a layout of `whole`.
[[nodiscard]] ParameterCut cut_of(const Architecture& whole, const TensorShard& shard,
                                  const Parameter& parameter);

/// Elements of a unit, one after another, whose parameters are on the same ranks and summed alike; without a
/// dimension.
struct SpreadRange {
  std::int64_t first = 0, count = 0;
  Spread spread;
};
/// Of a whole model one range.
[[nodiscard]] std::vector<SpreadRange> spread_ranges(const FlatUnit& unit);

}  // namespace neap::spec
