// The actions of a stage in rounds: where several in turn do the same, a plan counts one of them for all.
//
// Threads   functions without state.
// Cost      proportional to the actions, times stages * chunks at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "step/pipeline_schedule.h"

namespace neap::step {

/// So many actions, `times` times, each time with later micro-batches.
struct PipelineRound {
  std::size_t first = 0, actions = 0;
  std::int64_t times = 1;
};
/// Of a stage's list. Rounds are one where they do the same with micro-batches that are `alike`, and leave as much
/// waiting as there was.
[[nodiscard]] std::vector<PipelineRound> rounds_of(
    const PipelineShape& shape, const PipelineActions& actions,
    const std::function<bool(std::int64_t, std::int64_t)>& alike);

}  // namespace neap::step
