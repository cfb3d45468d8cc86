// Tensor parallelism (Shoeybi et al. 2019): each rank along the axis "tensor" has some attention
// heads, some columns of the MLP and some rows of the vocabulary. Everything else is replicated.
//
// A rank's shard is an Architecture of its own, from which layouts, tags, optimizer states and
// operations follow. The cut of a parameter says which elements of the whole model a shard has.
// Checkpoints are written and read by cuts. Shards of all ranks have the same shapes.
//
// If there are fewer key heads than ranks, several ranks have the same key head. Each computes the
// gradient from its own queries.
//
// Threads   values and stateless functions.
// Failure   kInvalidArgument with the sizes that would be valid.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/model/architecture.h"
#include "spec/model/layout.h"

namespace neap::spec {

/// A rank's shard of the unsharded model `whole`. `name` is the model's name for messages.
[[nodiscard]] Result<Architecture> part_of(const Architecture& whole, const TensorShard& shard,
                                           std::string_view name);

/// The dimension along which a parameter is sharded; -1: replicated.
[[nodiscard]] int cut_dimension(const Architecture& a, Module module, Part part);

/// Where a rank's shard lies in the whole parameter: ranges along one dimension, one after another.
struct ParameterCut {
  struct Range {
    std::int64_t first = 0, count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  int dimension = -1;  ///< -1: replicated
  std::vector<Range> ranges;
  [[nodiscard]] bool cuts() const { return dimension >= 0; }
};
/// The cut of a parameter in the layout of `whole`.
[[nodiscard]] ParameterCut cut_of(const Architecture& whole, const TensorShard& shard,
                                  const Parameter& parameter);

/// Consecutive elements of a unit whose parameters are on the same ranks and are summed in the same
/// way. The dimension is not set.
struct SpreadRange {
  std::int64_t first = 0, count = 0;
  Spread spread;
};
/// One range for a whole model.
[[nodiscard]] std::vector<SpreadRange> spread_ranges(const FlatUnit& unit);

}  // namespace neap::spec
