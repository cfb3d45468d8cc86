// One update of a model's trained units from their gradients.
#pragma once

#include <cmath>
#include <vector>

#include "spec/job.h"
#include "step/operations.h"

namespace neap::step {

/// One trained flat unit; every tensor is (elements,).
template <class T>
struct TrainedUnit {
  T weights;     // compute dtype
  T gradients;   // float32, or the compute dtype
  T exp_avg;     // float32
  T exp_avg_sq;  // float32
  T master;      // float32; undefined where the weights are float32 themselves
  [[nodiscard]] const T& target() const { return master.defined() ? master : weights; }
};

template <class Ops, class T = typename Ops::Tensor>
void zero_gradients(Ops& ops, const std::vector<TrainedUnit<T>>& units) {
  for (const TrainedUnit<T>& unit : units) ops.zero_(unit.gradients);
}

/// Norm of all gradients together. Each unit's norm is read back and added up on the host, in order:
/// a sum on the device in another order would break bit-for-bit resumption.
template <class Ops, class T = typename Ops::Tensor>
double gradient_norm(Ops& ops, const std::vector<TrainedUnit<T>>& units) {
  double squares = 0;
  for (const TrainedUnit<T>& unit : units) {
    const double norm = ops.read(ops.norm_of(unit.gradients));
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

/// One fused AdamW step, the `step`-th (from 1). Masters are rounded into the weights.
template <class Ops, class T = typename Ops::Tensor>
void adamw_step(Ops& ops, const std::vector<TrainedUnit<T>>& units,
                const spec::OptimizerConfig& config, double lr, std::int64_t step) {
  std::vector<T> targets, gradients, averages, squares, counts;
  for (const TrainedUnit<T>& unit : units) {
    targets.push_back(unit.target());
    gradients.push_back(ops.convert(unit.gradients, ops.dtype(unit.target())));
    averages.push_back(unit.exp_avg);
    squares.push_back(unit.exp_avg_sq);
    counts.push_back(ops.filled_like(unit.target(), static_cast<double>(step)));
  }
  if (targets.empty()) return;
  ops.fused_adamw_(targets, gradients, averages, squares, counts, lr, config);
  for (const TrainedUnit<T>& unit : units) {
    if (unit.master.defined()) ops.copy_(unit.weights, unit.master);
  }
}

}  // namespace neap::step
