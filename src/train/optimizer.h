// AdamW over flat buffers, gradient norms and learning rates.
//
// Ranks     every rank steps with the same gradients, the sum of all ranks', so weights stay the same.
// Threads   one at a time.   Failure   Error on a gradient that is not finite; c10::Error from
// libtorch. Cost      one fused kernel over all units; no temporary of a unit's size where weights
// are float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/aten_ops.h"
#include "parallel/communicator.h"
#include "spec/job.h"
#include "step/optimizer.h"

namespace neap::train {

/// The learning rate of optimizer step `step` (from 0) of `total`: linear warm-up, then constant, a
/// line to zero, or half a cosine to zero.
[[nodiscard]] double learning_rate(const spec::OptimizerConfig& config, std::int64_t step,
                                   std::int64_t total);

using OptimizerUnit = step::TrainedUnit<at::Tensor>;

class AdamW {
 public:
  /// `ranks` outlives it.
  AdamW(const spec::OptimizerConfig& config, std::vector<OptimizerUnit> units,
        parallel::Communicator& ranks);

  void zero_grads();
  /// Adds the ranks' gradients, one unit at a time. Then the norm over all units, before clipping;
  /// gradients are scaled down to `max_norm` if it is positive and less. Fails when the norm is not
  /// finite: a step from it would destroy the model.
  double reduce_grads(double max_norm);
  /// Counts an update; the units are then stepped, each once.
  void begin_step() { ++steps_; }
  /// The update of units [first, first + count) at learning rate `lr`, then masters are rounded into
  /// the weights. Touches these units only; ranges give the bits that all units at once would.
  void step_units(double lr, std::size_t first, std::size_t count);
  /// One update of all units.
  void step(double lr) {
    begin_step();
    step_units(lr, 0, units_.size());
  }

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] const std::vector<OptimizerUnit>& units() const { return units_; }

 private:
  spec::OptimizerConfig config_;
  model::AtenOps ops_;
  parallel::Communicator& ranks_;
  std::vector<OptimizerUnit> units_;
  std::int64_t steps_ = 0;
};

}  // namespace neap::train
