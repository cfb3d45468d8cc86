// The moves between phases that bring tags to where a schedule wants them.
//
// Threads   functions without state.
#pragma once

#include <optional>
#include <vector>

#include "plan/memory_plan.h"

namespace neap::plan {

/// Where a tag's contents are.
struct TagState {
  bool resident = false;
  bool dirty = true;  ///< the host copy is not (or no longer) the contents
};
/// Makes the tag resident or not. Whether that copies.
bool change_residency(const TagPlan& tag, TagState& state, bool resident);
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
