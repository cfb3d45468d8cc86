// The optimizer of a model: its units, the reduction of gradients over ranks, and its steps.
//
// Ranks     every rank steps with the same gradients, the sum over all ranks, and rounds with the
//           same random numbers. So weights stay equal. With sharded states each rank updates its
//           pieces, then all-gathers the other weights. With hybrid sharding, replicas also sum the
//           gradients of their pieces: first over the shard group, then over replicas.
// Threads   one at a time.
// Failure   c10::Error from libtorch.
// Cost      for a step see step/units/optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/communicator.h"
#include "spec/job/job.h"
#include "spec/job/placement.h"
#include "step/units/gradient_reduction.h"
#include "step/units/optimizer.h"

namespace neap::train {

/// The learning rate of optimizer step `step` (from 0) of `total`: linear warm-up, then constant,
/// or linear or cosine decay to min_lr_ratio of it.
[[nodiscard]] double learning_rate(const spec::OptimizerConfig& config, std::int64_t step,
                                   std::int64_t total);

using OptimizerUnit = step::TrainedUnit<at::Tensor>;

/// A tensor of a unit's state, as a view of the unit's region `state` (bytes,).
[[nodiscard]] at::Tensor state_view(const at::Tensor& state, const spec::StateTensor& tensor);

/// The elements that a rank updates if states are sharded.
struct OptimizerSlice {
  spec::StatePlacement placement;
  std::vector<OptimizerUnit> pieces;  ///< this rank's pieces of the placement, with states
  bool weights = false;               ///< weights are also sharded
  /// Ranks with the same pieces, which must outlive the optimizer; null: none.
  parallel::Communicator* replicas = nullptr;
};

class Optimizer {
 public:
  /// `ranks` are the data-parallel ranks or the ZeRO shard group, and must outlive the optimizer.
  /// `spec` and the units belong to `config`. Units have no states if states are sharded, and no
  /// gradients if gradients are. `seed` is for stochastic rounding. `reduced_together` is the
  /// bucket size of gradient reductions in bytes.
  Optimizer(const spec::OptimizerConfig& config, const spec::OptimizerSpec& spec,
            std::uint64_t seed, std::vector<OptimizerUnit> units, parallel::Communicator& ranks,
            std::optional<OptimizerSlice> slice = std::nullopt,
            std::int64_t reduced_together = step::kReductionBytes);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Receives gradients from the model, and starts to reduce them while backward continues. With
  /// sharded states each rank gets the sums of its pieces. Null if there is one rank and no
  /// offloaded unit, or if gradients are sharded, which are reduced elsewhere.
  [[nodiscard]] step::GradientSink<at::Tensor>* gradient_sink() {
    return reduction_ ? &*reduction_ : nullptr;
  }
  /// Reduces the remaining gradients in the same order, then sums those of pieces over replicas.
  /// Returns when all are complete. Offloaded gradients were already reduced before they were
  /// copied to the host.
  void reduce_gradients();
  /// If ranks reduce gradients after each group of micro-batches: how many more groups other ranks
  /// have.
  [[nodiscard]] std::int64_t further_groups(std::int64_t own) const;
  /// All-gathers the gradient norms of all ranges of all units (step/units/gradient_norm.h), in order.
  /// `own` are those of pieces(). Every rank calls it.
  [[nodiscard]] std::vector<double> all_norms(std::vector<double> own) const;
  /// With sharded states and whole weights on the device: all-gathers the weights that other ranks
  /// have updated, one unit at a time.
  void gather_weights();
  /// Whether gradients with this norm can be used: it is finite. Counts those that are not.
  [[nodiscard]] bool accepts(double norm);
  /// Non-finite norms since the last accepted one.
  [[nodiscard]] std::int64_t refused_in_a_row() const { return refused_; }
  /// The factor that scales gradients of this finite norm to at most `max_norm`. It is 1 if
  /// `max_norm` is not positive.
  [[nodiscard]] static double clip_scale(double norm, double max_norm) {
    return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1;
  }

  /// Counts a step. The caller then calls step::step_unit for each unit, or each part.
  [[nodiscard]] step::Update begin_step(double lr, double gradient_scale = 1);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void restore_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] const spec::OptimizerSpec& spec() const { return spec_; }
  [[nodiscard]] const std::vector<OptimizerUnit>& units() const { return units_; }
  /// The pieces that this rank updates.
  [[nodiscard]] const std::vector<OptimizerUnit>& pieces() const {
    return slice_ ? slice_->pieces : units_;
  }
  /// The units whose gradients this rank keeps.
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
