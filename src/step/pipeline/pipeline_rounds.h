// Groups the actions of a stage in rounds. If consecutive rounds do the same, a plan counts one of
// them for all.
//
// Threads   stateless functions.
// Cost      proportional to the actions, at most times stages * chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "step/pipeline/pipeline_schedule.h"

namespace neap::step {

/// A number of actions that are repeated `times` times, each time with later micro-batches.
struct PipelineRound {
  std::size_t first = 0, actions = 0;
  std::int64_t times = 1;
};
/// Rounds of a stage's schedule are merged if they do the same with micro-batches that are `alike`,
/// and the number of waiting tensors is unchanged.
[[nodiscard]] std::vector<PipelineRound> rounds_of(
    const PipelineShape& shape, const PipelineActions& actions,
    const std::function<bool(std::int64_t, std::int64_t)>& alike);

}  // namespace neap::step
