// Copies that run while a phase computes: which ones, and the seconds that are left of them.
//
// A copy to the device can run behind an earlier phase that does not need the tag, if the tag's bytes fit there: the tag
// is then resident in that phase and all that follow. A copy to the host can run behind a phase after the last one that
// writes the tag, if the tag is still resident: its pages leave when it would have left. Such a copy begins with its phase
// and is waited for at the phase's end. It hides for as long as the phase computes and the link's direction is free.
//
// Threads   functions without state.   Cost   about 0.1 ms for a job's plan.
#pragma once

#include <vector>

#include "plan/tag_options.h"

namespace neap::plan {

/// Copies behind the phases of a step.
struct Overlap {
  // Phases, one set a tag.
  std::vector<PhaseMask> resumes;  ///< what comes when they begin comes behind them
  std::vector<PhaseMask> backups;  ///< a host copy is made behind them
  double copy_seconds = 0;
  double visible_seconds = 0;  ///< the part that the phases do not hide
};

/// Keeps tags of `chosen` longer where that hides copies and their bytes fit, and chooses the phases of host copies.
/// Larger tags first; each direction of the link is given away once.
[[nodiscard]] Overlap hide_copies(const MemoryPlan& plan, std::vector<TagOption>& chosen);

}  // namespace neap::plan
