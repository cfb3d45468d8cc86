#include "step/counting/counting_ops.h"

#include <algorithm>
#include <memory>

namespace neap::step {
namespace {

// Fractions of the memory throughput of slower kernels (an H100;
// bench/results/kernel-times-h100.jsonl and products-h100.jsonl). They are conversion to a wider
// type, an operand that is broadcast over rows, gradients of a norm's input, and gradients of its
// weights.
constexpr double kWideningShare = 0.65;
constexpr double kBroadcastShare = 0.82;
constexpr double kNormShare = 0.86;
constexpr double kNormSumsShare = 0.5;

}  // namespace

void CountedTensor::free_storage() {
  storage_->sink->release(storage_->address);
  delete storage_;
  storage_ = nullptr;
}

// ---- making ----

CountedTensor CountingOps::make(const Shape& shape, Dtype dtype) {
  CountedTensor t = CountedTensor::outside(shape, dtype);
  // An empty tensor takes no memory.
  if (const std::int64_t size = t.bytes(); size > 0)
    t.storage_ = new CountedTensor::Storage{sink_, sink_->allocate(size), 1};
  return t;
}

CountedTensor CountingOps::iota(std::int64_t n, std::int64_t) {
  return make({n}, Dtype::kInt64);
}
CountedTensor CountingOps::from_host(const std::vector<float>& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return make(shape, Dtype::kFloat32);
}
CountedTensor CountingOps::from_host(const std::vector<std::int64_t>& values) {
  return make({std::ssize(values)}, Dtype::kInt64);
}
CountedTensor CountingOps::to_device(const CountedTensor& t) {
  return profile().cuda ? make(t.shape(), t.dtype()) : t;
}
CountedTensor CountingOps::to_host(const CountedTensor& t) {
  return CountedTensor::outside(t.shape(), t.dtype());
}

CountedTensor CountingOps::to_pinned(const CountedTensor& t) {
  copy_at_once(Direction::kToHost, bytes(t));
  return to_host(t);
}
CountedTensor CountingOps::from_pinned(const CountedTensor& t) {
  copy_at_once(Direction::kToDevice, bytes(t));
  return to_device(t);
}

// ---- views ----

CountedTensor CountingOps::with_shape(const CountedTensor& t, const Shape& shape) const {
  CountedTensor out = t;
  out.shape_ = shape;
  return out;
}
CountedTensor CountingOps::view(const CountedTensor& t, Shape shape) {
  std::int64_t known = 1;
  std::int64_t open = -1;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (shape[at] < 0) {
      open = at;
    } else {
      known *= shape[at];
    }
  }
  if (open >= 0) shape.set(open, t.shape().elements() / known);
  return with_shape(t, shape);
}
CountedTensor CountingOps::transpose(const CountedTensor& t) {
  Shape shape = t.shape();
  shape.set(-2, t.size(-1));
  shape.set(-1, t.size(-2));
  return with_shape(t, shape);
}
CountedTensor CountingOps::narrow(const CountedTensor& t, std::int64_t dimension, std::int64_t,
                                  std::int64_t count) {
  Shape shape = t.shape();
  shape.set(dimension, count);
  return with_shape(t, shape);
}
CountedTensor CountingOps::select(const CountedTensor& t, std::int64_t dimension, std::int64_t) {
  const Shape& s = t.shape();
  switch (s.rank()) {
    case 1:
      return with_shape(t, {});
    case 2:
      return with_shape(t, {s[1 - dimension]});
    case 3:
      return with_shape(t, {s[dimension == 0 ? 1 : 0], s[dimension == 2 ? 1 : 2]});
    default:
      return with_shape(
          t, {s[dimension == 0 ? 1 : 0], s[dimension <= 1 ? 2 : 1], s[dimension == 3 ? 2 : 3]});
  }
}
CountedTensor CountingOps::by_head(const CountedTensor& x, std::int64_t sequences) {
  return with_shape(x, {sequences, x.size(1), x.size(0) / sequences, x.size(2)});
}
CountedTensor CountingOps::convert(CountedTensor t, Dtype dtype) {
  if (t.dtype() == dtype) return t;
  CountedTensor out = make(t.shape(), dtype);
  add_traffic(bytes(t) + bytes(out), bytes(out) > bytes(t) ? kWideningShare : 1);
  return out;
}

// ---- products ----

CountedTensor CountingOps::product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), b.size(1)}, a.dtype());
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
              bytes(a) + bytes(b) + bytes(out), 0, a.dtype());
  return out;
}
CountedTensor CountingOps::product_plus(const CountedTensor&, const CountedTensor& a,
                                        const CountedTensor& b) {
  return product(a, b);
}
void CountingOps::add_product_(const CountedTensor& c, const CountedTensor& a,
                               const CountedTensor& b, double) {
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
              bytes(a) + bytes(b), bytes(c), a.dtype());
}

CountedTensor CountingOps::batch_product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), a.size(1), b.size(2)}, a.dtype());
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(2)),
              bytes(a) + bytes(b) + bytes(out), 0, a.dtype());
  return out;
}

// ---- elementwise ----

CountedTensor CountingOps::unary(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
  return make(a.shape(), a.dtype());
}
CountedTensor CountingOps::elementwise(const CountedTensor& a, const CountedTensor& b) {
  Shape shape = a.shape();
  // The operand with more dimensions, or larger ones, determines the result's shape.
  if (b.shape().elements() > shape.elements()) shape = b.shape();
  if (a.shape().rank() == b.shape().rank()) {
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      shape.set(at, std::max(a.shape()[at], b.shape()[at]));
    }
  } else if (a.shape().rank() == 2 && b.shape().rank() == 1) {
    shape = {a.size(0), std::max(a.size(1), b.size(0))};
  }
  CountedTensor out = make(shape, a.dtype());
  add_traffic(bytes(a) + bytes(b) + bytes(out));
  return out;
}
CountedTensor CountingOps::plus(const CountedTensor& a, std::int64_t) {
  return unary(a);
}
CountedTensor CountingOps::log_sigmoid(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
  CountedTensor out = make(a.shape(), a.dtype());
  if (!profile().cuda) touch(a.shape().elements(), a.dtype());
  return out;
}
CountedTensor CountingOps::comparison(const CountedTensor& a) {
  add_traffic(3 * bytes(a));
  const CountedTensor boolean = make(a.shape(), Dtype::kBool);
  return make(a.shape(), a.dtype());
}
void CountingOps::add_(const CountedTensor& a, const CountedTensor& b) {
  in_place(a, b);
  if (!profile().cuda && a.dtype() != b.dtype()) touch(b.shape().elements(), a.dtype());
}
void CountingOps::in_place(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
}
void CountingOps::in_place(const CountedTensor& a, const CountedTensor& b) {
  add_traffic(2 * bytes(a) + bytes(b), bytes(b) < bytes(a) ? kBroadcastShare : 1);
}
void CountingOps::multiply_into(const CountedTensor& out, const CountedTensor& a,
                                const CountedTensor& b) {
  add_traffic(bytes(out) + bytes(a) + bytes(b));
}
void CountingOps::add_multiply_(const CountedTensor& a, const CountedTensor& b,
                                const CountedTensor& c, double) {
  add_traffic(2 * bytes(a) + bytes(b) + bytes(c));
}
void CountingOps::zero_(const CountedTensor& a) {
  add_traffic(bytes(a));
}
void CountingOps::copy_(const CountedTensor& a, const CountedTensor& b) {
  add_traffic(bytes(a) + bytes(b));
}

// ---- indices ----

CountedTensor CountingOps::take_rows(const CountedTensor& table, const CountedTensor& indices) {
  CountedTensor out = table.shape().rank() == 2
                          ? make({indices.size(0), table.size(1)}, table.dtype())
                          : make({indices.size(0)}, table.dtype());
  add_traffic(2 * bytes(out));
  return out;
}
CountedTensor CountingOps::take_rows_from_host(const CountedTensor& table,
                                               const CountedTensor& indices) {
  CountedTensor out = take_rows(table, indices);
  copy_at_once(Direction::kToDevice, bytes(out));
  return out;
}
void CountingOps::add_to_rows_(const CountedTensor& table, const CountedTensor&,
                               const CountedTensor& rows) {
  if (profile().own.add_rows(table.dtype(), rows.dtype(), rows.size(1)))
    return add_traffic(bytes(rows) * (1 + 2.0 * static_cast<double>(element_bytes(table.dtype())) /
                                              static_cast<double>(element_bytes(rows.dtype()))));
  const CountedTensor converted = convert(rows, table.dtype());
  add_traffic(3 * bytes(converted));
  if (!profile().cuda) return;
  // Rows with the same index are added one after another, so indices are sorted with their
  // positions.
  const Shape column{rows.size(0)};
  CountedTensor linear;
  {
    const CountedTensor wrapped = make(column, Dtype::kInt64);
    linear = make(column, Dtype::kInt64);
  }
  const CountedTensor sorted = make(column, Dtype::kInt64);
  const CountedTensor places = make(column, Dtype::kInt64);
  const CountedTensor range = make(column, Dtype::kInt64);
  touch(pair_sort_scratch(rows.size(0), table.size(0)), Dtype::kBool);
}
void CountingOps::put_rows_(const CountedTensor&, const CountedTensor&, const CountedTensor& rows) {
  add_traffic(2 * bytes(rows));
}
CountedTensor CountingOps::gather_last(const CountedTensor& a, const CountedTensor& indices) {
  return make({indices.size(0)}, a.dtype());
}
void CountingOps::add_to_last_(const CountedTensor&, const CountedTensor&,
                               const CountedTensor& values) {
  add_traffic(2 * bytes(values));
}
CountedTensor CountingOps::last_rows(const CountedTensor& lengths, std::int64_t) {
  return make({lengths.size(0)}, Dtype::kInt64);
}

// ---- norms ----

NormResult<CountedTensor> CountingOps::norm(spec::NormKind kind, const CountedTensor& x,
                                            const CountedTensor& weight, const CountedTensor&,
                                            double) {
  const Shape column{x.size(0), 1};
  const Dtype inner = wide(x.dtype());
  NormResult<CountedTensor> out;
  add_traffic(2 * bytes(x));
  if (kind == spec::NormKind::kLayerNorm) {
    out.y = make(x.shape(), x.dtype());
    // Statistics of the CPU kernel have the parameters' type.
    out.mean = make(column, profile().cuda ? inner : x.dtype());
    out.rstd = make(column, profile().cuda ? inner : x.dtype());
    return out;
  }
  if (profile().cuda) {
    const CountedTensor gain =
        kind == spec::NormKind::kRmsOffset ? make(weight.shape(), weight.dtype()) : CountedTensor();
    out.y = make(x.shape(), x.dtype());
    out.rstd = make(column, inner);
    return out;
  }
  out.rstd = make(column, inner);
  out.y = convert(make(x.shape(), inner), x.dtype());
  return out;
}

CountedTensor CountingOps::rms_norm_backward_on_host(const CountedTensor& dy,
                                                     const CountedTensor& x, bool trained) {
  const Dtype inner = wide(x.dtype());
  const CountedTensor wide_dy = convert(dy, inner);
  const CountedTensor x_hat = make(x.shape(), inner);
  if (trained) {
    const CountedTensor product = make(x.shape(), inner);
    const CountedTensor sum = make({x.size(1)}, inner);
  }
  CountedTensor dx = make(x.shape(), inner);
  {
    const CountedTensor product = make(x.shape(), inner);
    const CountedTensor mean = make({x.size(0), 1}, inner);
  }
  return convert(std::move(dx), x.dtype());
}

CountedTensor CountingOps::norm_backward(spec::NormKind kind, const CountedTensor& dy,
                                         const CountedTensor& x, const CountedTensor&,
                                         const CountedTensor&, const CountedTensor& weight,
                                         const CountedTensor& d_weight,
                                         const CountedTensor& d_bias) {
  add_traffic(3 * bytes(x), kNormShare);
  if (d_weight.defined()) add_traffic(2 * bytes(x), kNormSumsShare);
  if (kind != spec::NormKind::kLayerNorm && !profile().cuda)
    return rms_norm_backward_on_host(dy, x, d_weight.defined());
  CountedTensor gain =
      kind == spec::NormKind::kRmsOffset ? make(weight.shape(), weight.dtype()) : CountedTensor();
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor gamma = make(weight.shape(), weight.dtype());
  const CountedTensor beta =
      d_bias.defined() ? make(weight.shape(), weight.dtype()) : CountedTensor();
  gain = CountedTensor();
  // The CPU kernel's partial sums: one pair of rows per thread.
  if (!profile().cuda) touch(2 * profile().threads * x.size(1), x.dtype());
  return dx;
}

CountedTensor CountingOps::own_rms_norm_backward(spec::NormKind, const CountedTensor&,
                                                 const CountedTensor& x, const CountedTensor&,
                                                 const CountedTensor&,
                                                 const CountedTensor& d_weight,
                                                 const CountedTensor& added) {
  add_traffic((added.defined() ? 4 : 3) * bytes(x), kNormShare);
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor sums = make({norm_blocks(x.size(0)), x.size(1)}, Dtype::kFloat32);
  add_traffic(bytes(sums));
  return dx;
}

}  // namespace neap::step
