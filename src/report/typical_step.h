// Finds a step of usual length in the trace of a run, which a page shows first.
//
// Threads   any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "report/history.h"
#include "report/phase_table.h"

namespace neap::report {

struct StepSpan {
  std::uint64_t begin_ns = 0, end_ns = 0;
};

/// The step of median length. A step begins with its first planned phase that the trace has, after its
/// last one has run, so that rounds of generation are in one step. A validation that runs the first
/// phase is in the step that follows. nullopt without a plan or with few steps.
[[nodiscard]] std::optional<StepSpan> typical_step(std::span<const PhaseSpan> phases,
                                                   const std::optional<PlanSummary>& plan);

}  // namespace neap::report
