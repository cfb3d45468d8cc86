// The optimizer of a model: its units, the sum of their gradients over ranks, and its steps.
//
// Ranks     every rank steps with the same gradients, the sum of all ranks', and rounds by the same
//           random numbers, so weights stay the same. Where states are sliced each rank steps its pieces,
//           and gets the other weights from those who have.
//
// Threads   one at a time.
//
// Failure   Error on a gradient that is not finite; c10::Error from libtorch.
//
// Cost      of a step see step/optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/communicator.h"
#include "spec/job.h"
#include "spec/placement.h"
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
  /// `spec` and the units are of `config`; units of sliced states have none. `seed`: of stochastic
  /// rounding. `ranks` outlives it.
  Optimizer(const spec::OptimizerConfig& config, const spec::OptimizerSpec& spec,
            std::uint64_t seed, std::vector<OptimizerUnit> units, parallel::Communicator& ranks,
            std::optional<spec::StatePlacement> sliced = std::nullopt);

  /// Adds the ranks' gradients, one unit at a time. Those on the host are one rank's.
  void reduce_gradients();
  /// Of sliced states: the weights that other ranks have stepped, one unit at a time, into place.
  void gather_weights();
  /// What gradients of this norm are scaled by, so that it is `max_norm` at most; 1 where that is not
  /// positive. Fails when the norm is not finite: a step from it would destroy the model.
  [[nodiscard]] double clip_scale(double norm, double max_norm) const;

  /// Counts a step; step::step_unit for each unit, or each part of them, then makes it.
  [[nodiscard]] step::Update begin_step(double lr, double gradient_scale = 1);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] const spec::OptimizerSpec& spec() const { return spec_; }
  [[nodiscard]] const std::vector<OptimizerUnit>& units() const { return units_; }

 private:
  spec::OptimizerConfig config_;
  spec::OptimizerSpec spec_;
  std::uint64_t seed_;
  parallel::Communicator& ranks_;
  std::vector<OptimizerUnit> units_;
  std::optional<spec::StatePlacement> sliced_;
  std::int64_t steps_ = 0;
};

}  // namespace neap::train
