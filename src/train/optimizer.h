// The optimizer of a model: reduces and clips gradients, then steps its units.
//
// Ranks     every rank steps with the same gradients, the sum of all ranks', and rounds by the same
//           random numbers, so weights stay the same.
//
// Memory    reducing and clipping touch gradients only. step_units touches the weights, gradients and state
//           of its units only.
//
// Threads   one at a time.
//
// Failure   Error on a gradient that is not finite; c10::Error from libtorch.
//
// Cost      AdamW and SGD: one fused kernel a unit, without scratch where every tensor is float32.
//           Others, and bfloat16: a few spans of step::kSpan elements of scratch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/aten_ops.h"
#include "parallel/communicator.h"
#include "spec/job.h"
#include "step/optimizer.h"

namespace neap::train {

/// The learning rate of optimizer step `step` (from 0) of `total`: linear warm-up, then constant, or
/// a line or half a cosine down to min_lr_ratio of it.
[[nodiscard]] double learning_rate(const spec::OptimizerConfig& config, std::int64_t step,
                                   std::int64_t total);

using OptimizerUnit = step::TrainedUnit<at::Tensor>;

/// A tensor of a unit's state, as a view of the unit's region `state` (bytes,).
[[nodiscard]] at::Tensor state_view(const at::Tensor& state, const spec::StateTensor& tensor);

class Optimizer {
 public:
  /// `spec` and the units are of `config`. `seed`: of stochastic rounding. `ranks` outlives it.
  Optimizer(const spec::OptimizerConfig& config, const spec::OptimizerSpec& spec,
            std::uint64_t seed, std::vector<OptimizerUnit> units, parallel::Communicator& ranks);

  void zero_grads();
  /// Adds the ranks' gradients, one unit at a time.
  void reduce_gradients();
  /// Scales gradients of this norm down to `max_norm` if it is positive and less. Fails when the norm
  /// is not finite: a step from it would destroy the model.
  void clip_gradients(double norm, double max_norm);

  /// Counts a step; step_units, or step::step_unit for each unit, then makes it.
  [[nodiscard]] step::Update begin_step(double lr);
  /// The step of units [first, first + count). Any split into ranges gives the same bits.
  void step_units(const step::Update& update, std::size_t first, std::size_t count);
  /// A whole step at learning rate `lr`.
  void step(double lr);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] const spec::OptimizerSpec& spec() const { return spec_; }
  [[nodiscard]] const std::vector<OptimizerUnit>& units() const { return units_; }

 private:
  spec::OptimizerConfig config_;
  spec::OptimizerSpec spec_;
  std::uint64_t seed_;
  model::AtenOps ops_;
  parallel::Communicator& ranks_;
  std::vector<OptimizerUnit> units_;
  std::int64_t steps_ = 0;
};

}  // namespace neap::train
