// Chooses which copies overlap with phases, and computes their exposed time.
//
// A copy to the device can overlap with an earlier phase that does not need the tag, if the tag
// fits there. The tag is then resident from that phase on. A copy to the host can overlap with a
// phase after the last one that writes the tag, while the tag is still resident. Its pages are
// freed no earlier than without the overlap. Such a copy starts with its phase and is waited for at
// the phase's end. It is hidden for as long as the phase computes and the link's direction is free.
//
// Threads   stateless functions.
// Cost      about 0.1 ms for a job's plan.
#pragma once

#include <vector>

#include "plan/residency/tag_options.h"

namespace neap::plan {

/// The copies of a step that overlap with phases.
struct Overlap {
  // Sets of phases, one per tag.
  std::vector<PhaseMask> resumes;  ///< resumes at their start overlap with them
  std::vector<PhaseMask> backups;  ///< a host copy is made during them
  double copy_seconds = 0;
  double visible_seconds = 0;  ///< exposed part of the copies
};

/// Extends the residency of tags in `chosen` if that hides copies and the tags fit. Also chooses
/// the phases of host copies. Larger tags come first, and each second of a link direction is used
/// once.
[[nodiscard]] Overlap hide_copies(const MemoryPlan& plan, std::vector<TagOption>& chosen);

}  // namespace neap::plan
