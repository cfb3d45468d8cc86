// Chooses which tags stay on the device in which phase: the cheapest schedule that fits.
//
// Model   A step is a walk over phases; a loop's phases run in rounds. Between two phases that need it
//         a tag has a *gap*, and in a gap it stays or it is away; leaving for a part of a gap moves
//         the same bytes as leaving for all of it and frees less. A gap that reaches into a loop is
//         cut there, since the moves inside are made in every round. So a tag has at most 2^gaps
//         options, each with a set of phases in which it is resident and a cost, and tags
//         depend on each other only through the capacity of each phase.
//         In a phase that runs once the tags that it needs are resident, and no others.
// Cost    bytes over the link in one step of the steady cycle; among equals, bytes mapped again.
//
// Threads   functions without state.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
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
/// One option of a tag for the step.
struct TagOption {
  PhaseMask resident = 0;  ///< on the device in these phases
  MoveCost cost;
  Bytes host;  ///< host copy that it needs
};
/// All options of one of the plan's tags that no other option beats in everything, cheapest first.
[[nodiscard]] std::vector<TagOption> tag_options(const MemoryPlan& plan, const TagPlan& tag);

/// The least capacity under which a schedule exists (host budget included); transient included. The
/// largest number where the host budget forbids every schedule.
[[nodiscard]] Bytes min_capacity(const MemoryPlan& plan);

/// solve_residency, without words where nothing fits: false. With a `limit` of seconds of the whole
/// step, schedules whose bytes alone take longer are not looked for.
[[nodiscard]] Result<bool> solve_if_fits(MemoryPlan& plan, spec::Residency mode,
                                         double limit = std::numeric_limits<double>::infinity());
/// Of the largest phase with only what it needs: no schedule takes less.
[[nodiscard]] Bytes least_needed(const MemoryPlan& plan);
/// What a plan that does not fit would need.
struct Shortage {
  Bytes capacity;   ///< that was asked for
  Bytes least;      ///< that would do; the largest number: none does
  Bytes with_host;  ///< the same with as much host memory as it wants
};
/// Why the plan does not fit, and what would do: kDoesNotFit.
[[nodiscard]] Status refusal(const MemoryPlan& plan, const Shortage& shortage);

/// Where a tag's contents are.
struct TagState {
  bool resident = false;
  bool dirty = true;  ///< the host copy is not (or no longer) the contents
};
/// The move of a tag that is to be resident or away, and its state after it; nullopt: none.
[[nodiscard]] std::optional<Move> move_tag(const TagPlan& tag, TagState& state, bool resident);
/// Moves of all tags, in the order in which they are executed: pauses that copy nothing, pauses that
/// copy, resumes. The runtime calls it for what is outside the cycle.
[[nodiscard]] std::vector<Move> moves_to(const MemoryPlan& plan, std::vector<TagState>& states,
                                         const std::vector<bool>& resident);
/// The same for a phase, with those that run behind it at the end: resumes, then backups. The schedule is made of these.
[[nodiscard]] std::vector<Move> moves_into(const MemoryPlan& plan, std::vector<TagState>& states,
                                           std::size_t phase);
/// What is written in a phase makes host copies stale.
void enter_phase(const MemoryPlan& plan, std::vector<TagState>& states, std::size_t phase);

}  // namespace neap::plan
