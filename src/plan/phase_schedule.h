// Which tags stay on the device in which phase: the cheapest answer that fits.
//
// Model   Between two phases that need it a tag has a *gap*, and in a gap it stays or it is away;
//         leaving for a part of a gap moves the same bytes as leaving for all of it and frees less.
//         So a tag has at most 2^gaps options, each with a set of phases in which it is resident
//         and a cost, and tags meet only in the capacity of each phase.
// Cost    bytes over the link in one step of the steady cycle; among equals, bytes mapped again.
// Search  branch and bound over tags, largest first; a node's bound is the dearest phase's
//         fractional knapsack of what still has to leave. Exact: the bound never passes the true
//         cost, and tests compare with enumeration.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "plan/memory_plan.h"

namespace neap::plan {

struct MoveCost {
  std::uint64_t transfer_bytes = 0;  ///< bytes copied to and from the host
  std::uint64_t remap = 0;           ///< bytes unmapped and mapped again
  MoveCost& operator+=(const MoveCost& o) {
    transfer_bytes += o.transfer_bytes;
    remap += o.remap;
    return *this;
  }
  friend auto operator<=>(const MoveCost&, const MoveCost&) = default;
};

/// One way in which a tag can spend the step.
struct TagOption {
  std::uint64_t resident = 0;    ///< bit p: on the device in phase p
  std::uint64_t copied_out = 0;  ///< bit p: leaves before phase p with its contents copied
  MoveCost cost;
  Bytes host;  ///< host copy that it needs
};
/// All options that no other option beats in everything, cheapest first.
[[nodiscard]] std::vector<TagOption> tag_options(const TagPlan& tag);

/// The least capacity under which a schedule exists (host budget included); transient included.
[[nodiscard]] Bytes min_capacity(const MemoryPlan& plan);

}  // namespace neap::plan
