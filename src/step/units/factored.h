// Optimizers with factored second moments, one number per row and per column of a matrix: Adafactor
// and SM3.
//
// A vector is a matrix of one row without row numbers; its column numbers belong to elements.
// Matrices are processed in tiles of rows, so scratch memory does not grow with the model, and sums
// are sums of tiles.
//
// With tensor parallelism along rows or columns, each rank has the numbers of its own rows or
// columns, and all numbers of the other side. Sums and means over a sharded side are over all
// ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "step/units/trained_unit.h"

namespace neap::step {

/// A parameter as a matrix over the flat tensors of its unit.
class ParameterMatrix {
 public:
  /// With tiles of at most `tile` elements, but at least one row.
  ParameterMatrix(const spec::Parameter& p, std::int64_t tile)
      : rows_(p.shape.size() == 2 ? p.shape[0] : 1),
        columns_(p.elements() / rows_),
        offset_(p.offset),
        block_(std::clamp<std::int64_t>(tile / columns_, 1, rows_)),
        parts_(p.spread.parts),
        divides_rows_(parts_ > 1 && p.shape.size() == 2 && p.spread.dimension == 0) {}

  // The numbers of this rank, and of all ranks.
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] bool divides_rows() const { return divides_rows_; }
  [[nodiscard]] bool divides_columns() const { return parts_ > 1 && !divides_rows_; }
  [[nodiscard]] std::int64_t all_rows() const { return divides_rows() ? parts_ * rows_ : rows_; }
  [[nodiscard]] std::int64_t all_columns() const {
    return divides_columns() ? parts_ * columns_ : columns_;
  }
  [[nodiscard]] double elements() const { return static_cast<double>(parts_ * rows_ * columns_); }
  /// Completes this rank's sums to those over all ranks, if the summed side is sharded.
  template <class Ops, class T = typename Ops::Tensor>
  void complete_(Ops& ops, const T& sums, bool divided) const {
    if (!divided) return;
    ops.sum_over_(sums, spec::Axis::kTensor);
    // Every shard is on the same number of ranks.
    if (const std::int64_t copies = ops.ranks(spec::Axis::kTensor) / parts_; copies > 1)
      ops.scale_(sums, 1 / static_cast<double>(copies));
  }
  [[nodiscard]] bool in_one_block() const { return block_ == rows_; }
  /// Offset of a row in the flat unit.
  [[nodiscard]] std::int64_t first_element(std::int64_t row) const {
    return offset_ + row * columns_;
  }
  /// Calls visit(first row, count) for each tile, in order.
  template <class Visit>
  void for_each_block(const Visit& visit) const {
    for (std::int64_t row = 0; row < rows_; row += block_)
      visit(row, std::min(block_, rows_ - row));
  }
  /// Rows of a flat tensor of the unit: (count, columns).
  template <class Ops, class T = typename Ops::Tensor>
  [[nodiscard]] T part(Ops& ops, const T& flat, std::int64_t row, std::int64_t count) const {
    return ops.view(ops.narrow(flat, 0, first_element(row), count * columns_), {count, columns_});
  }

 private:
  std::int64_t rows_, columns_, offset_, block_;
  std::int64_t parts_;  // number of shards
  bool divides_rows_;
};

/// total += norm^2, on the device. Reading it back would synchronise for every parameter.
template <class Ops, class T = typename Ops::Tensor>
void add_square(Ops& ops, T& total, const T& norm) {
  ops.multiply_(norm, norm);
  if (total.defined()) {
    ops.add_(total, norm);
  } else {
    total = norm;
  }
}

// ---- Adafactor (Shazeer and Stern, 2018, algorithms 4 and 5) ----

template <class Ops>
class AdafactorStep {
  using T = typename Ops::Tensor;

 public:
  AdafactorStep(Ops& ops, const TrainedUnit<T>& unit, const Update& update)
      : ops_(ops), u_(unit), update_(update), access_(ops, unit, update) {}

  void run(std::int64_t parameter) {
    const ParameterMatrix p(u_.unit.parameters[static_cast<std::size_t>(parameter)], update_.tile);
    find_factors(p, parameter);
    apply(p, step_size(p));
    row_factor_ = T();
    column_factor_ = T();
    only_direction_ = T();
  }

 private:
  // Updates the second moments from this step's gradient, then computes the factors of the
  // direction.
  void find_factors(const ParameterMatrix& p, std::int64_t parameter) {
    const std::int64_t row = u_.place("exp_avg_sq_row", parameter);
    const bool factored = row >= 0;
    const std::int64_t column = u_.place(factored ? "exp_avg_sq_col" : "exp_avg_sq", parameter);
    const Dtype dtype = wide(ops_.dtype(u_.gradients));
    const T row_sums = factored ? ops_.empty({p.rows()}, dtype) : T();
    T column_sums;
    p.for_each_block([&](std::int64_t first, std::int64_t count) {
      const T g = access_.load(p.part(ops_, u_.gradients, first, count));
      const T squares = ops_.multiply(g, g);
      if (factored) ops_.copy_(ops_.narrow(row_sums, 0, first, count), ops_.sum_last(squares));
      T sums = ops_.sum_rows(squares, dtype);
      if (column_sums.defined()) {
        ops_.add_(column_sums, sums);
      } else {
        column_sums = std::move(sums);
      }
    });
    p.complete_(ops_, column_sums, p.divides_rows());
    column_factor_ = ops_.clone(moment(column, column_sums, p.all_rows()));
    ops_.rsqrt_(column_factor_);
    if (!factored) return;
    p.complete_(ops_, row_sums, p.divides_columns());
    row_factor_ = ops_.clone(moment(row, row_sums, p.all_columns()));
    const T mean = ops_.sum(row_factor_);
    p.complete_(ops_, mean, p.divides_rows());
    ops_.scale_(mean, 1 / static_cast<double>(p.all_rows()));
    ops_.divide_(row_factor_, mean);
    ops_.rsqrt_(row_factor_);
  }

  // Updates the moment at `place` with the mean of `n` squares, in float32.
  T moment(std::int64_t place, const T& sums, std::int64_t n) {
    const double beta = 1 - std::pow(static_cast<double>(update_.step), update_.config.beta2_decay);
    const T state = u_.at(place);
    T value = access_.load(state);
    ops_.scale_(value, beta);
    ops_.scale_(sums, (1 - beta) / static_cast<double>(n));
    ops_.add_(sums, (1 - beta) * update_.config.eps1);
    ops_.add_(value, sums);
    access_.store(state, value, place, 0);
    return value;
  }

  // Gradient divided by the root of the second moment: (count, columns).
  T direction(const ParameterMatrix& p, std::int64_t first, std::int64_t count) {
    T u = ops_.multiply(access_.load(p.part(ops_, u_.gradients, first, count)), column_factor_);
    if (row_factor_.defined())
      ops_.multiply_(u, ops_.view(ops_.narrow(row_factor_, 0, first, count), {count, 1}));
    return u;
  }

  // The factor of directions: () on the device.
  T step_size(const ParameterMatrix& p) {
    const spec::OptimizerConfig& c = update_.config;
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    T direction_size, parameter_size;
    p.for_each_block([&](std::int64_t first, std::int64_t count) {
      T u = direction(p, first, count);
      add_square(ops_, direction_size, ops_.norm_of(u));
      if (p.in_one_block()) only_direction_ = std::move(u);
      if (c.relative_step) {
        const T x = access_.load(p.part(ops_, u_.target(), first, count));
        add_square(ops_, parameter_size, ops_.norm_of(x));
      }
    });
    const bool divided = p.divides_rows() || p.divides_columns();
    p.complete_(ops_, direction_size, divided);
    ops_.scale_(direction_size, 1 / (p.elements() * c.clip_threshold * c.clip_threshold));
    T size = ops_.clamp(direction_size, 1, kNoLimit);
    ops_.rsqrt_(size);
    if (!c.relative_step) {
      ops_.scale_(size, update_.lr);
      return size;
    }
    p.complete_(ops_, parameter_size, divided);
    ops_.scale_(parameter_size, 1 / p.elements());
    const T root = ops_.clamp(parameter_size, c.eps2 * c.eps2, kNoLimit);
    ops_.sqrt_(root);
    ops_.multiply_(size, root);
    ops_.scale_(size, std::min(update_.lr, 1 / std::sqrt(static_cast<double>(update_.step))));
    return size;
  }

  void apply(const ParameterMatrix& p, const T& size) {
    const double decay = update_.lr * update_.config.weight_decay;
    p.for_each_block([&](std::int64_t first, std::int64_t count) {
      const T u = p.in_one_block() ? only_direction_ : direction(p, first, count);
      const T target = p.part(ops_, u_.target(), first, count);
      const T x = access_.load(target);
      if (decay != 0) ops_.scale_(x, 1 - decay);
      ops_.multiply_(u, size);
      ops_.subtract_(x, u);
      access_.store(target, x, access_.kTarget, p.first_element(first));
    });
  }

  Ops& ops_;
  const TrainedUnit<T>& u_;
  const Update& update_;
  UnitAccess<Ops> access_;
  T row_factor_, column_factor_;  // of the current parameter
  T only_direction_;              // kept if the parameter is a single tile
};

template <class Ops, class T = typename Ops::Tensor>
void adafactor_step(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  AdafactorStep<Ops> step(ops, u, update);
  for (std::int64_t i = 0; i < std::ssize(u.unit.parameters); ++i) step.run(i);
}

// ---- SM3 (Anil, Gupta, Koren and Singer, 2019, SM3-II) ----

/// Updates one parameter. An element's accumulator is the smaller one of its row and its column,
/// plus its squared gradient. Then each row and column keeps its maximum. Momentum is as in the
/// authors' code.
template <class Ops, class T = typename Ops::Tensor>
void sm3_parameter(Ops& ops, UnitAccess<Ops>& access, const TrainedUnit<T>& u, const Update& update,
                   std::int64_t parameter) {
  constexpr double kTiny = 1e-30;  // an element that never had a gradient does not move
  const ParameterMatrix p(u.unit.parameters[static_cast<std::size_t>(parameter)], update.tile);
  const std::int64_t row_at = u.place("accumulator_row", parameter);
  const bool factored = row_at >= 0;
  const std::int64_t column_at = u.place(factored ? "accumulator_col" : "accumulator", parameter);
  const std::int64_t momentum_at = u.place("momentum_buffer");
  const T rows = factored ? access.load(u.at(row_at)) : T();
  const T columns = access.load(u.at(column_at));
  T new_columns;
  p.for_each_block([&](std::int64_t first, std::int64_t count) {
    const T g = access.load(p.part(ops, u.gradients, first, count));
    const T row = factored ? ops.narrow(rows, 0, first, count) : T();
    const T v = factored ? ops.minimum(ops.view(row, {count, 1}), columns)
                         : ops.clone(ops.view(columns, {1, p.columns()}));
    ops.add_multiply_(v, g, g, 1);
    if (factored) ops.copy_(row, ops.view(ops.max_last(v), {count}));
    T most = ops.max_rows(v);
    new_columns = new_columns.defined() ? ops.maximum(new_columns, most) : std::move(most);
    ops.add_(v, kTiny);
    ops.rsqrt_(v);
    ops.multiply_(v, g);  // the direction
    const T target = p.part(ops, u.target(), first, count);
    const T x = access.load(target);
    if (update.config.weight_decay != 0) ops.scale_(x, 1 - update.lr * update.config.weight_decay);
    if (momentum_at < 0) {
      ops.add_scaled_(x, v, -update.lr);
    } else {
      const T buffer = p.part(ops, u.at(momentum_at), first, count);
      const T m = access.load(buffer);
      ops.scale_(m, update.config.momentum);
      ops.add_scaled_(m, v, 1 - update.config.momentum);
      ops.add_scaled_(x, m, -update.lr);
      access.store(buffer, m, momentum_at, p.first_element(first));
    }
    access.store(target, x, access.kTarget, p.first_element(first));
  });
  if (p.divides_rows()) ops.max_over_(new_columns, spec::Axis::kTensor);
  if (factored && p.divides_columns()) ops.max_over_(rows, spec::Axis::kTensor);
  if (factored) access.store(u.at(row_at), rows, row_at, 0);
  access.write(u.at(column_at), new_columns, column_at, 0);
}

template <class Ops, class T = typename Ops::Tensor>
void sm3_step(Ops& ops, const TrainedUnit<T>& u, const Update& update) {
  UnitAccess<Ops> access(ops, u, update);
  for (std::int64_t i = 0; i < std::ssize(u.unit.parameters); ++i)
    sm3_parameter(ops, access, u, update, i);
}

}  // namespace neap::step
