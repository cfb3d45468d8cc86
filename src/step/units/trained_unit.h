// The data of an optimizer step: a trained unit with its state, and access to tensors of any type
// as float32.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "spec/job/job.h"
#include "spec/job/placement.h"
#include "step/operations/operations.h"

namespace neap::step {

/// A trained flat unit, or a part of it. Every tensor has one dimension.
template <class T>
struct TrainedUnit {
  spec::FlatUnit unit;
  std::int64_t index = 0;  ///< number among the model's trained units
  std::int64_t first = 0;  ///< for a part: its first element
  bool on_host = false;    ///< weights and gradients are offloaded
  T weights, gradients;    // (elements,)
  spec::UnitState layout;
  std::vector<T> state;  ///< one per tensor of layout.tensors()

  /// The index of a tensor in `state`; -1 if there is none. `parameter` is an index in
  /// unit.parameters.
  [[nodiscard]] std::int64_t place(std::string_view name,
                                   std::int64_t parameter = spec::StateTensor::kWholeUnit) const {
    const spec::StateTensor* found = layout.find(name, parameter);
    return found == nullptr ? -1 : found - layout.tensors().data();
  }
  [[nodiscard]] T at(std::int64_t place) const {
    return place < 0 ? T() : state[static_cast<std::size_t>(place)];
  }
  [[nodiscard]] T master() const { return at(place("master")); }
  /// The tensor that updates are added to.
  [[nodiscard]] T target() const {
    const T copy = master();
    return copy.defined() ? copy : weights;
  }
};

/// `view(tensor)` creates the tensor that a spec::StateTensor describes.
template <class T, class View>
TrainedUnit<T> make_trained_unit(const spec::OptimizerSpec& optimizer, spec::FlatUnit unit,
                                 std::int64_t index, T weights, T gradients, const View& view) {
  TrainedUnit<T> out;
  out.layout = optimizer.state(unit);
  for (const spec::StateTensor& tensor : out.layout.tensors()) out.state.push_back(view(tensor));
  out.unit = std::move(unit);
  out.index = index;
  out.weights = std::move(weights);
  out.gradients = std::move(gradients);
  return out;
}

/// A rank's piece of `unit`; view(tensor) is as in make_trained_unit. If the unit has no weights or
/// gradients, neither has the piece.
template <class Ops, class View, class T = typename Ops::Tensor>
TrainedUnit<T> make_piece(Ops& ops, const TrainedUnit<T>& unit, const spec::Piece& piece,
                          spec::UnitState states, const View& view) {
  TrainedUnit<T> out;
  out.unit = unit.unit;
  out.index = unit.index;
  out.first = piece.first;
  out.on_host = unit.on_host;
  if (unit.weights.defined()) out.weights = ops.narrow(unit.weights, 0, piece.first, piece.count);
  if (unit.gradients.defined())
    out.gradients = ops.narrow(unit.gradients, 0, piece.first, piece.count);
  out.layout = std::move(states);
  for (const spec::StateTensor& tensor : out.layout.tensors()) out.state.push_back(view(tensor));
  return out;
}

/// Elements that a pass over a tensor converts at once: 16 MiB of float32. It bounds the scratch
/// memory of a step, and is large enough for kernels to reach the memory throughput.
constexpr std::int64_t kSpan = std::int64_t{1} << 22;
static_assert(spec::kSumTile == kSpan, "both need the same scratch memory");

/// One step of an optimizer.
struct Update {
  const spec::OptimizerSpec& optimizer;
  const spec::OptimizerConfig& config;
  double lr = 0;
  std::int64_t step = 1;      ///< counted from 1
  std::uint64_t seed = 0;     ///< for stochastic rounding
  double gradient_scale = 1;  ///< clips the gradients
  std::int64_t span = kSpan;  ///< for element-wise steps; their results do not depend on it
  std::int64_t tile = spec::kSumTile;  ///< for factored steps
};

/// Access to a unit's tensors in float32, or float64 for a float64 model. A tensor of that type is
/// used in place. Another one is copied by load() and written back by store() with stochastic
/// rounding. Rounding to nearest would lose updates far below the spacing of bfloat16 in every
/// step; stochastic rounding keeps their mean.
template <class Ops>
class UnitAccess {
  using T = typename Ops::Tensor;

 public:
  UnitAccess(Ops& ops, const TrainedUnit<T>& unit, const Update& update)
      : ops_(ops),
        unit_(unit),
        key_(random_key({update.seed, static_cast<std::uint64_t>(update.step),
                         static_cast<std::uint64_t>(unit.index)})) {}

  [[nodiscard]] T load(const T& t) { return ops_.convert(t, wide(ops_.dtype(t))); }
  [[nodiscard]] bool is_exact(const T& t) const { return ops_.dtype(t) == wide(ops_.dtype(t)); }
  /// `to` is part of the tensor at `place`, starting at its element `first`. kTarget means the
  /// weights.
  void store(const T& to, const T& value, std::int64_t place, std::int64_t first) {
    if (!is_exact(to)) round(to, value, place, first);
  }
  /// As store(), for a value that does not come from load().
  void write(const T& to, const T& value, std::int64_t place, std::int64_t first) {
    if (is_exact(to)) {
      ops_.copy_(to, value);
    } else {
      round(to, value, place, first);
    }
  }
  static constexpr std::int64_t kTarget = -1;

 private:
  void round(const T& to, const T& value, std::int64_t place, std::int64_t first) {
    if (!noise_.defined())
      noise_ = ops_.rounding_noise(key_, std::min(unit_.unit.elements, kNoise));
    const auto tensor = static_cast<std::uint64_t>(place + 1);
    ops_.round_stochastically_(to, value, noise_, random_key({key_, tensor}), first);
  }

  Ops& ops_;
  const TrainedUnit<T>& unit_;
  std::uint64_t key_;
  T noise_;
};

}  // namespace neap::step
