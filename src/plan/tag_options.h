// The ways in which one tag can come and go during a step.
//
// Model   A step is a walk over phases; a loop's phases run in rounds. Between two phases that need it
//         a tag has a *gap*, and in a gap it stays or it is away; leaving for a part of a gap moves
//         the same bytes as leaving for all of it and frees less. A gap that reaches into a loop is
//         cut there, since the moves inside are made in every round. So a tag has at most 2^gaps
//         options, each with a set of phases in which it is resident and a cost, and tags
//         depend on each other only through the capacity of each phase.
//         In a phase that runs once the tags that it needs are resident, and no others.
//
// Threads   functions without state.
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

/// A set of phases, a bit each.
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
  Bytes host;  ///< host copy that it needs
};
/// All options of one of the plan's tags that no other option beats in everything, cheapest first.
[[nodiscard]] std::vector<TagOption> tag_options(const MemoryPlan& plan, const TagPlan& tag);

/// The phases that run once and need the tag: there it has no choice.
[[nodiscard]] PhaseMask needed_once(const MemoryPlan& plan, const TagPlan& tag);

}  // namespace neap::plan
