// Shapes of pipelines, and times of their micro-batches.
#pragma once

#include <random>

#include "step/pipeline/pipeline_schedule.h"

namespace neap::step {

inline std::vector<PipelineShape> random_shapes(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<PipelineShape> out;
  for (int i = 0; i < count; ++i) {
    PipelineShape shape{draw(1, 8), draw(1, 24), draw(0, 1) == 0 ? 1 : draw(2, 4)};
    if (draw(0, 1) == 0) shape.micro_batches = shape.stages * draw(1, 5);  // full rounds
    shape.zero_bubble = shape.chunks == 1 && draw(0, 1) == 0;
    out.push_back(shape);
  }
  return out;
}

inline std::string name_of(const PipelineShape& shape) {
  return std::to_string(shape.stages) + " stages, " + std::to_string(shape.micro_batches) +
         " micro-batches, " + std::to_string(shape.chunks) + " chunks" +
         (shape.zero_bubble ? ", zero bubble" : "");
}

// Whether the stage's backward is in two parts.
inline bool has_two_parts(const PipelineShape& shape, std::int64_t stage) {
  return shape.zero_bubble && stage > 0;
}

// `weights`: of a backward, where it is in two parts.
inline PipelineTimes same_times(const PipelineShape& shape, double forward, double backward,
                                double weights = 0) {
  const auto parts = static_cast<std::size_t>(shape.parts());
  PipelineTimes out{std::vector<double>(parts, forward), std::vector<double>(parts, backward)};
  out.weights.assign(parts, weights);
  for (std::size_t s = 1; s < parts; ++s)
    if (shape.zero_bubble) out.backward[s] -= weights;
  return out;
}

}  // namespace neap::step
