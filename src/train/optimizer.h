// The optimizer of a model: its units, the sum of their gradients over ranks, and its steps.
//
// Ranks     every rank steps with the same gradients, the sum of all ranks', and rounds by the same
//           random numbers, so weights stay the same. Where states are sliced each rank steps its pieces
//           with their gradients alone, and gets the other weights from those who have. Replicas of such
//           ranks add up the gradients of their pieces before they step them: the order of a sum is that of the
//           ranks that slice together, then that of the replicas.
//
// Threads   one at a time.
//
// Failure   c10::Error from libtorch.
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
#include "step/gradient_reduction.h"
#include "step/optimizer.h"

namespace neap::train {

/// The learning rate of optimizer step `step` (from 0) of `total`: linear warm-up, then constant, or
/// a line or half a cosine down to min_lr_ratio of it.
[[nodiscard]] double learning_rate(const spec::OptimizerConfig& config, std::int64_t step,
                                   std::int64_t total);

using OptimizerUnit = step::TrainedUnit<at::Tensor>;

/// A tensor of a unit's state, as a view of the unit's region `state` (bytes,).
[[nodiscard]] at::Tensor state_view(const at::Tensor& state, const spec::StateTensor& tensor);

/// What a rank steps where states are sliced.
struct OptimizerSlice {
  spec::StatePlacement placement;
  std::vector<OptimizerUnit> pieces;  ///< the placement's of this rank, with states
  bool weights = false;               ///< no rank has weights but its pieces'
  /// Those with the same pieces, which outlive the optimizer; null: none.
  parallel::Communicator* replicas = nullptr;
};

class Optimizer {
 public:
  /// `ranks` have the same part of the model, or slice it together. `spec` and the units are of `config`; units of sliced states have none, and of sliced gradients no
  /// gradients. `seed`: of stochastic rounding. `reduced_together`: bytes of gradients that are handed to the
  /// ranks as one. `ranks` outlives it.
  Optimizer(const spec::OptimizerConfig& config, const spec::OptimizerSpec& spec,
            std::uint64_t seed, std::vector<OptimizerUnit> units, parallel::Communicator& ranks,
            std::optional<OptimizerSlice> slice = std::nullopt,
            std::int64_t reduced_together = step::kReductionBytes);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Begins to add up the ranks' gradients while backward goes on, once the model sends them here: of sliced states
  /// those of each rank's pieces on it. Null: there is one rank and no unit on the host, or they are sliced and added as
  /// they come.
  [[nodiscard]] step::GradientSink<at::Tensor>* gradient_sink() {
    return reduction_ ? &*reduction_ : nullptr;
  }
  /// The rest of them, in the same order, then those of pieces over their replicas; returns when all are there. What
  /// rests on the host was added up before it left.
  void reduce_gradients();
  /// Groups that other ranks have more than this one's, where ranks add gradients up group by group.
  [[nodiscard]] std::int64_t further_groups(std::int64_t own) const;
  /// Norms of all ranges of all units (step/gradient_norm.h), in order, from those of pieces(). Every rank calls it.
  [[nodiscard]] std::vector<double> all_norms(std::vector<double> own) const;
  /// Of sliced states and whole weights on the device: those that other ranks have stepped, one unit at a time, into
  /// place.
  void gather_weights();
  /// Whether a step can be made from gradients of this norm: it is finite. Counts those that are not.
  [[nodiscard]] bool accepts(double norm);
  /// How many norms since the last accepted one were not finite.
  [[nodiscard]] std::int64_t refused_in_a_row() const { return refused_; }
  /// What gradients of this finite norm are scaled by, so that it is `max_norm` at most; 1 where that is
  /// not positive.
  [[nodiscard]] static double clip_scale(double norm, double max_norm) {
    return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1;
  }

  /// Counts a step; step::step_unit for each unit, or each part of them, then makes it.
  [[nodiscard]] step::Update begin_step(double lr, double gradient_scale = 1);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] const spec::OptimizerSpec& spec() const { return spec_; }
  [[nodiscard]] const std::vector<OptimizerUnit>& units() const { return units_; }
  /// Those that this rank steps.
  [[nodiscard]] const std::vector<OptimizerUnit>& pieces() const {
    return slice_ ? slice_->pieces : units_;
  }
  /// Those whose gradients it keeps.
  [[nodiscard]] const std::vector<OptimizerUnit>& with_gradients() const {
    return slices_gradients() ? slice_->pieces : units_;
  }

 private:
  void begin_sums(const std::vector<std::size_t>& units);
  void sum_over_replicas();
  [[nodiscard]] parallel::Communicator::PartialSum sum_of(std::size_t unit,
                                                          const at::Tensor& gradients) const;
  void sum_leaving(std::size_t unit, const at::Tensor& gradients);
  [[nodiscard]] bool slices_gradients() const {
    return slice_ && slice_->placement.slices_gradients();
  }

  spec::OptimizerConfig config_;
  spec::OptimizerSpec spec_;
  std::uint64_t seed_;
  parallel::Communicator& ranks_;
  std::vector<OptimizerUnit> units_;
  std::optional<OptimizerSlice> slice_;
  std::optional<step::GradientReduction<at::Tensor>> reduction_;
  std::int64_t steps_ = 0, refused_ = 0;
};

}  // namespace neap::train
