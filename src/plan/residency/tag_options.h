// The ways in which one tag can be moved during a step.
//
// Model     A step is a walk over phases; a loop's phases run in rounds. The phases between two
//           that need a tag are a *gap*, in which the tag stays or is offloaded. Offloading for a
//           part of a gap copies the same bytes and frees less, so it is not an option. A gap that
//           crosses a loop's border is cut there, because moves inside the loop run in every round.
//           So a tag has at most 2^gaps options, each with a set of resident phases and a cost.
//           Tags interact only through the capacity of each phase. In a phase that runs once,
//           exactly the tags that it needs are resident.
// Threads   stateless functions.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "plan/results/memory_plan.h"

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

/// A set of phases, one bit each.
using PhaseMask = std::uint64_t;
constexpr PhaseMask phase_bit(std::size_t p) {
  return PhaseMask{1} << p;
}
constexpr std::size_t kMostPhases = 64;
constexpr PhaseMask all_phases(std::size_t n) {
  return n == kMostPhases ? ~PhaseMask{0} : phase_bit(n) - 1;
}
/// One option of a tag for the step.
struct TagOption {
  PhaseMask resident = 0;  ///< on the device in these phases
  MoveCost cost;
  Bytes host;  ///< host memory that it needs
};
/// All Pareto-optimal options of one of the plan's tags, cheapest first.
[[nodiscard]] std::vector<TagOption> tag_options(const MemoryPlan& plan, const TagPlan& tag);

/// The phases that run once and need the tag; there it has no choice.
[[nodiscard]] PhaseMask needed_once(const MemoryPlan& plan, const TagPlan& tag);

}  // namespace neap::plan
