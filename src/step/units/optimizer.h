// One update of a model's trained units from their gradients.
//
// A step of a unit touches only that unit's tensors. So the order of units does not matter. If the
// optimizer's elements are independent, a unit may also be updated in parts. Results are bitwise
// the same.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "step/units/factored.h"
#include "step/units/trained_unit.h"

namespace neap::step {

/// Gradients of offloaded or sharded blocks are zeroed in their prefetch buffers instead.
template <class Ops, class T = typename Ops::Tensor>
void zero_gradients(Ops& ops, const std::vector<TrainedUnit<T>>& units) {
  for (const TrainedUnit<T>& unit : units)
    if (!unit.on_host) ops.zero_(unit.gradients);
}

/// A step with independent elements, as one fused kernel over the flat unit: kernel(x, g, state).
/// `state` has the tensors that belong to the whole unit, in order. If every tensor is float32, no
/// scratch memory is needed.
template <class Ops, class Kernel, class T = typename Ops::Tensor>
void step_elementwise(Ops& ops, const TrainedUnit<T>& u, const Update& update,
                      const Kernel& kernel) {
  UnitAccess<Ops> access(ops, u, update);
  const T target = u.target();
  bool exact = access.is_exact(target) && access.is_exact(u.gradients);
  std::vector<std::int64_t> dense;  // indices into the state
  for (std::int64_t i = 0; i < std::ssize(u.state); ++i) {
    if (i == u.place("master")) continue;
    dense.push_back(i);
    exact = exact && access.is_exact(u.at(i));
  }
  const std::int64_t elements = u.weights.size(0);
  const std::int64_t span = exact ? elements : std::min(elements, update.span);
  for (std::int64_t first = 0; first < elements; first += span) {
    const std::int64_t count = std::min(span, elements - first);
    const auto part = [&](const T& t) { return ops.narrow(t, 0, first, count); };
    const T x = access.load(part(target));
    const T g = access.load(part(u.gradients));
    std::vector<T> state;
    for (const std::int64_t i : dense) state.push_back(access.load(part(u.at(i))));
    kernel(x, g, state);
    access.store(part(target), x, access.kTarget, u.first + first);
    for (std::size_t i = 0; i < dense.size(); ++i)
      access.store(part(u.at(dense[i])), state[i], dense[i], u.first + first);
  }
}

/// Whether one kernel does all of the unit's update: scales the gradient, steps, and rounds the
/// master.
template <class Ops, class T = typename Ops::Tensor>
bool takes_own_adamw(Ops& ops, const TrainedUnit<T>& u) {
  const auto is = [&](const T& t, Dtype dtype) { return ops.dtype(t) == dtype; };
  if (!ops.own_kernels(ops.dtype(u.gradients)) || !is(u.target(), Dtype::kFloat32)) return false;
  if (u.master().defined() && !is(u.weights, Dtype::kBfloat16)) return false;
  return std::all_of(u.state.begin(), u.state.end(),
                     [&](const T& t) { return is(t, Dtype::kFloat32); });
}
template <class Ops, class T = typename Ops::Tensor>
void own_adamw_step(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  AdamWTensors<T> t;
  t.x = u.target();
  t.average = u.at(u.place("exp_avg"));
  t.square = u.at(u.place("exp_avg_sq"));
  t.gradient = u.gradients;
  if (u.master().defined()) t.copy = u.weights;
  ops.own_adamw_(t, update.gradient_scale, update.step, update.lr, update.config);
}

/// AdamW, as torch.optim.AdamW.
template <class Ops, class T = typename Ops::Tensor>
void adamw_step(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  const T count = ops.filled_like(u.weights, static_cast<double>(update.step));
  step_elementwise(ops, u, update, [&](const T& x, const T& g, const std::vector<T>& state) {
    ops.fused_adamw_(x, g, state[0], state[1], count, update.lr, update.config);
  });
}

/// SGD, as torch.optim.SGD: weight decay is added to the gradient.
template <class Ops, class T = typename Ops::Tensor>
void sgd_step(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  step_elementwise(ops, u, update, [&](const T& x, const T& g, const std::vector<T>& state) {
    ops.fused_sgd_(x, g, state.empty() ? T() : state[0], update.lr, update.config);
  });
}

/// One step of one unit. It may be a part of a unit. A master copy is rounded to nearest into the
/// weights.
template <class Ops, class T = typename Ops::Tensor>
void step_unit(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  if (update.optimizer.kind == spec::OptimizerKind::kAdamW && takes_own_adamw(ops, u))
    return own_adamw_step(ops, u, update);
  if (update.gradient_scale != 1) ops.scale_(u.gradients, update.gradient_scale);
  switch (update.optimizer.kind) {
    case spec::OptimizerKind::kAdamW:
      adamw_step(ops, u, update);
      break;
    case spec::OptimizerKind::kAdafactor:
      adafactor_step(ops, u, update);
      break;
    case spec::OptimizerKind::kSm3:
      sm3_step(ops, u, update);
      break;
    case spec::OptimizerKind::kSgd:
      sgd_step(ops, u, update);
      break;
  }
  if (const T master = u.master(); master.defined()) ops.copy_(u.weights, master);
}

}  // namespace neap::step
