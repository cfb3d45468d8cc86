#include "step/counting/counting_base.h"

#include <algorithm>

namespace neap::step {
namespace {

// Fractions of the memory throughput of slower kernels (an H100;
// bench/results/kernel-times-h100.jsonl and products-h100.jsonl): conversion to a wider type, and an
// operand that is broadcast over rows.
constexpr double kWideningShare = 0.65;
constexpr double kBroadcastShare = 0.82;

}  // namespace

void CountedTensor::free_storage() {
  storage_->sink->release(storage_->address);
  delete storage_;
  storage_ = nullptr;
}

// ---- making ----

CountedTensor CountingBase::make(const Shape& shape, Dtype dtype) {
  CountedTensor t = CountedTensor::outside(shape, dtype);
  // An empty tensor takes no memory.
  if (const std::int64_t size = t.bytes(); size > 0)
    t.storage_ = new CountedTensor::Storage{sink_, sink_->allocate(size), 1};
  return t;
}

CountedTensor CountingBase::iota(std::int64_t n, std::int64_t) {
  return make({n}, Dtype::kInt64);
}
CountedTensor CountingBase::from_host(const std::vector<float>& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return make(shape, Dtype::kFloat32);
}
CountedTensor CountingBase::from_host(const std::vector<std::int64_t>& values) {
  return make({std::ssize(values)}, Dtype::kInt64);
}
CountedTensor CountingBase::to_device(const CountedTensor& t) {
  return profile().cuda ? make(t.shape(), t.dtype()) : t;
}
CountedTensor CountingBase::to_host(const CountedTensor& t) {
  return CountedTensor::outside(t.shape(), t.dtype());
}

CountedTensor CountingBase::to_pinned(const CountedTensor& t) {
  copy_at_once(Direction::kToHost, bytes(t));
  return to_host(t);
}
CountedTensor CountingBase::from_pinned(const CountedTensor& t) {
  copy_at_once(Direction::kToDevice, bytes(t));
  return to_device(t);
}

// ---- views ----

CountedTensor CountingBase::with_shape(const CountedTensor& t, const Shape& shape) const {
  CountedTensor out = t;
  out.shape_ = shape;
  return out;
}
CountedTensor CountingBase::view(const CountedTensor& t, Shape shape) {
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
CountedTensor CountingBase::transpose(const CountedTensor& t) {
  Shape shape = t.shape();
  shape.set(-2, t.size(-1));
  shape.set(-1, t.size(-2));
  return with_shape(t, shape);
}
CountedTensor CountingBase::narrow(const CountedTensor& t, std::int64_t dimension, std::int64_t,
                                   std::int64_t count) {
  Shape shape = t.shape();
  shape.set(dimension, count);
  return with_shape(t, shape);
}
CountedTensor CountingBase::select(const CountedTensor& t, std::int64_t dimension, std::int64_t) {
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
CountedTensor CountingBase::by_head(const CountedTensor& x, std::int64_t sequences) {
  return with_shape(x, {sequences, x.size(1), x.size(0) / sequences, x.size(2)});
}
CountedTensor CountingBase::convert(CountedTensor t, Dtype dtype) {
  if (t.dtype() == dtype) return t;
  CountedTensor out = make(t.shape(), dtype);
  add_traffic(bytes(t) + bytes(out), bytes(out) > bytes(t) ? kWideningShare : 1);
  return out;
}

// ---- elementwise ----

CountedTensor CountingBase::unary(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
  return make(a.shape(), a.dtype());
}
CountedTensor CountingBase::elementwise(const CountedTensor& a, const CountedTensor& b) {
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
CountedTensor CountingBase::plus(const CountedTensor& a, std::int64_t) {
  return unary(a);
}
CountedTensor CountingBase::log_sigmoid(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
  CountedTensor out = make(a.shape(), a.dtype());
  if (!profile().cuda) touch(a.shape().elements(), a.dtype());
  return out;
}
CountedTensor CountingBase::comparison(const CountedTensor& a) {
  add_traffic(3 * bytes(a));
  const CountedTensor boolean = make(a.shape(), Dtype::kBool);
  return make(a.shape(), a.dtype());
}
void CountingBase::add_(const CountedTensor& a, const CountedTensor& b) {
  in_place(a, b);
  if (!profile().cuda && a.dtype() != b.dtype()) touch(b.shape().elements(), a.dtype());
}
void CountingBase::in_place(const CountedTensor& a) {
  add_traffic(2 * bytes(a));
}
void CountingBase::in_place(const CountedTensor& a, const CountedTensor& b) {
  add_traffic(2 * bytes(a) + bytes(b), bytes(b) < bytes(a) ? kBroadcastShare : 1);
}
void CountingBase::multiply_into(const CountedTensor& out, const CountedTensor& a,
                                 const CountedTensor& b) {
  add_traffic(bytes(out) + bytes(a) + bytes(b));
}
void CountingBase::add_multiply_(const CountedTensor& a, const CountedTensor& b,
                                 const CountedTensor& c, double) {
  add_traffic(2 * bytes(a) + bytes(b) + bytes(c));
}
void CountingBase::zero_(const CountedTensor& a) {
  add_traffic(bytes(a));
}
void CountingBase::copy_(const CountedTensor& a, const CountedTensor& b) {
  add_traffic(bytes(a) + bytes(b));
}

}  // namespace neap::step
