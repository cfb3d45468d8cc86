// A whole unit from the parts that ranks have of it, as they write it.
#pragma once

#include <ATen/ATen.h>

#include "weights/unit_cuts.h"

namespace neap::testing {

/// What `rank` writes of its `part` of a unit comes to `whole`.
inline void join_part(const weights::UnitCuts& cuts, std::size_t unit, std::int64_t rank,
                      const at::Tensor& part, const at::Tensor& whole) {
  const auto& parameters = cuts.whole()[unit].parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (const weights::PartRun& run : cuts.runs(unit, i, rank))
      whole.narrow(0, parameters[i].offset + run.whole, run.count)
          .copy_(part.narrow(0, run.part, run.count));
}

}  // namespace neap::testing
