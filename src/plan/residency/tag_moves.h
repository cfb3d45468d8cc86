// The moves between phases that a schedule requires for its tags.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <vector>

#include "plan/results/memory_plan.h"

namespace neap::plan {

/// Where a tag's contents are.
struct TagState {
  bool resident = false;
  bool dirty = true;  ///< the host copy is missing or stale
};
/// Changes whether the tag is resident. Returns whether that copies.
bool change_residency(const TagPlan& tag, TagState& state, bool resident);
/// The move that makes a tag resident or offloaded, and updates its state; nullopt if none is
/// needed.
[[nodiscard]] std::optional<Move> move_tag(const TagPlan& tag, TagState& state, bool resident);
/// Moves of all tags, in execution order: pauses that copy nothing, pauses that copy, resumes. The
/// runtime uses it outside the cycle.
[[nodiscard]] std::vector<Move> moves_to(const MemoryPlan& plan, std::vector<TagState>& states,
                                         const std::vector<bool>& resident);
/// The same for a phase, followed by moves that overlap with it: resumes, then backups. Schedules
/// consist of these.
[[nodiscard]] std::vector<Move> moves_into(const MemoryPlan& plan, std::vector<TagState>& states,
                                           std::size_t phase);
/// Writing a tag in a phase makes its host copy stale.
void enter_phase(const MemoryPlan& plan, std::vector<TagState>& states, std::size_t phase);

}  // namespace neap::plan
