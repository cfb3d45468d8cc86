// What an optimizer's step reads and writes: a trained unit with its state, and access to tensors of
// any type as float32.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "spec/job.h"
#include "spec/placement.h"
#include "step/operations.h"

namespace neap::step {

/// One trained flat unit, or a part of it; every tensor has one dimension.
template <class T>
struct TrainedUnit {
  spec::FlatUnit unit;
  std::int64_t index = 0;  ///< among the model's trained units
  std::int64_t first = 0;  ///< of a part: its first element
  bool on_host = false;    ///< weights and gradients rest in host memory
  T weights, gradients;    // (elements,)
  spec::UnitState layout;
  std::vector<T> state;  ///< one for each of layout.tensors()

  /// Place of a tensor in `state`; `parameter`: index in unit.parameters. -1 when there is none.
  [[nodiscard]] std::int64_t place(std::string_view name,
                                   std::int64_t parameter = spec::StateTensor::kWholeUnit) const {
    const spec::StateTensor* found = layout.find(name, parameter);
    return found == nullptr ? -1 : found - layout.tensors().data();
  }
  [[nodiscard]] T at(std::int64_t place) const {
    return place < 0 ? T() : state[static_cast<std::size_t>(place)];
  }
  [[nodiscard]] T master() const { return at(place("master")); }
  /// What updates are added to.
  [[nodiscard]] T target() const {
    const T copy = master();
    return copy.defined() ? copy : weights;
  }
};

/// `view(tensor)` makes the tensor that a spec::StateTensor describes.
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

/// A rank's piece of `unit`; view(tensor) as make_trained_unit. Where the unit has no weights or gradients of its own,
/// neither has the piece.
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

/// Elements that a pass over a tensor converts at once: 16 MiB of float32. It bounds the scratch of a
/// step; kernels on a GPU are large enough to be limited by memory.
constexpr std::int64_t kSpan = std::int64_t{1} << 22;
/// A span is a tile: scratch of both is the same.
constexpr std::int64_t kTile = spec::kTile;
static_assert(kTile == kSpan);

/// One step of an optimizer.
struct Update {
  const spec::OptimizerSpec& optimizer;
  const spec::OptimizerConfig& config;
  double lr = 0;
  std::int64_t step = 1;      ///< counted from 1
  std::uint64_t seed = 0;     ///< of stochastic rounding
  double gradient_scale = 1;  ///< clips the gradients
  std::int64_t span = kSpan;  ///< of element-wise steps; their bits do not depend on it
  std::int64_t tile = kTile;  ///< of factored ones
};

/// Tensors of a unit in float32, those of a float64 model in float64. Such a tensor is worked on in
/// place; another one is copied by load() and written back by store() with stochastic rounding: an
/// update far below the spacing of bfloat16 counts in the mean, where rounding to nearest would lose
/// it in every step.
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
  /// `to` is part of the tensor at `place`, from its element `first`; kTarget: of the weights.
  void store(const T& to, const T& value, std::int64_t place, std::int64_t first) {
    if (!is_exact(to)) round(to, value, place, first);
  }
  /// As store() for a value that load() did not give.
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
