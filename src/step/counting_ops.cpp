#include "step/counting_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "step/kernel_seconds.h"

namespace neap::step {
namespace {

// Of the memory's rate, where a kernel does not reach it (an H100; bench/results/kernel-times-h100.jsonl and
// products-h100.jsonl): to wider elements, with one operand for many rows, gradients of a norm's input and of its weights.
constexpr double kWideningShare = 0.65;
constexpr double kBroadcastShare = 0.82;
constexpr double kNormShare = 0.86;
constexpr double kNormSumsShare = 0.5;
// To start a product takes so many times what `neap doctor` measures of an operation: by decoding of 1.5B with and without LoRA,
// and of 7B, on two machines with H100s (docs/measurements/training.md).
constexpr double kProductIssues = 1.2;

}  // namespace

void CountedTensor::free_storage() {
  storage_->sink->release(storage_->address);
  delete storage_;
  storage_ = nullptr;
}

void CountingOps::add_work(double flops, double bytes_moved, double seconds, double issues) {
  work_.flops += weight_ * flops;
  work_.bytes_moved += weight_ * bytes_moved;
  const KernelRates& rates = profile_.rates;
  if (rates.bytes <= 0) return;
  work_.seconds += weight_ * seconds;
  work_.issue_seconds += weight_ * issues * rates.issue_seconds;
  computed_seconds_ += seconds;
  issued_seconds_ += issues * rates.issue_seconds;
}
void CountingOps::add_traffic(double bytes_moved, double share) {
  add_work(0, bytes_moved, traffic_seconds(profile_.rates, bytes_moved, share));
}
void CountingOps::add_product(double flops, double bytes_moved, double sum_bytes, Dtype dtype) {
  add_work(flops, bytes_moved + 2 * sum_bytes,
           product_seconds(profile_.rates, product_rate(dtype), flops, bytes_moved, sum_bytes),
           kProductIssues);
}
void CountingOps::add_kernel(double flops, double bytes_moved, Dtype dtype, double share) {
  const KernelRates& rates = profile_.rates;
  add_work(flops, bytes_moved,
           rates.operation_seconds +
               std::max(bytes_moved / rates.bytes, flops / (share * product_rate(dtype))));
}

// The device waits for starts of small operations, the program at the token's end for what is left of large ones: between the
// larger of both and their sum. Decoding of 1.5B and 7B (docs/measurements/training.md) is near the root of squares.
void CountingOps::take_in_turns(const Work& start) {
  const double both =
      std::hypot(work_.seconds - start.seconds, work_.issue_seconds - start.issue_seconds);
  work_.seconds = start.seconds + both;
  work_.issue_seconds = start.issue_seconds + both;
}

double CountingOps::begin_copy(Direction direction, double bytes, double from) {
  (direction == Direction::kToDevice ? work_.fetched_bytes : work_.stored_bytes) += weight_ * bytes;
  return copies_.copy(direction, bytes, from);
}

double CountingOps::begin_disk(Direction direction, double bytes, double from) {
  (direction == Direction::kToDevice ? work_.disk_read : work_.disk_written) += weight_ * bytes;
  // Its reads and writes share one rate.
  return disk_.copy(direction, bytes, std::max(from, disk_.end()));
}

double CountingOps::advance_to(double time) {
  const double now = this->now();
  clock_ = std::max(now, time);
  computed_seconds_ = issued_seconds_ = 0;
  return clock_ - now;
}

void CountingOps::wait_until(double time) {
  work_.wait_seconds += weight_ * advance_to(time);
}

void CountingOps::wait_for_peers(double time, double sent, spec::Axis axis) {
  work_.peer_bytes += weight_ * sent;
  const double waited = weight_ * advance_to(time);
  work_.peer_seconds += waited;
  work_.axis_seconds.at(static_cast<std::size_t>(axis)) += waited;
}

void CountingOps::copy_at_once(Direction direction, double bytes) {
  if (profile_.cuda) wait_until(copies_.copy(direction, bytes, now()));
}

// ---- making ----

CountedTensor CountingOps::make(const Shape& shape, Dtype dtype) {
  CountedTensor t = CountedTensor::outside(shape, dtype);
  // An empty tensor takes no memory.
  if (const std::int64_t size = t.bytes(); size > 0)
    t.storage_ = new CountedTensor::Storage{&sink_, sink_.allocate(size), 1};
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
  return profile_.cuda ? make(t.shape(), t.dtype()) : t;
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
  // The operand with more dimensions or larger ones decides.
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
  if (!profile_.cuda) touch(a.shape().elements(), a.dtype());
  return out;
}
CountedTensor CountingOps::comparison(const CountedTensor& a) {
  add_traffic(3 * bytes(a));
  const CountedTensor boolean = make(a.shape(), Dtype::kBool);
  return make(a.shape(), a.dtype());
}
void CountingOps::add_(const CountedTensor& a, const CountedTensor& b) {
  in_place(a, b);
  if (!profile_.cuda && a.dtype() != b.dtype()) touch(b.shape().elements(), a.dtype());
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
  const CountedTensor converted = convert(rows, table.dtype());
  add_traffic(3 * bytes(converted));
  if (!profile_.cuda) return;
  // Rows of the same index are added one after another: the indices are sorted with their places.
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
    // Statistics of the CPU kernel have the parameters' dtype.
    out.mean = make(column, profile_.cuda ? inner : x.dtype());
    out.rstd = make(column, profile_.cuda ? inner : x.dtype());
    return out;
  }
  if (profile_.cuda) {
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
  if (kind != spec::NormKind::kLayerNorm && !profile_.cuda)
    return rms_norm_backward_on_host(dy, x, d_weight.defined());
  CountedTensor gain =
      kind == spec::NormKind::kRmsOffset ? make(weight.shape(), weight.dtype()) : CountedTensor();
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor gamma = make(weight.shape(), weight.dtype());
  const CountedTensor beta =
      d_bias.defined() ? make(weight.shape(), weight.dtype()) : CountedTensor();
  gain = CountedTensor();
  // Partial sums of the CPU kernel, one pair of rows a thread.
  if (!profile_.cuda) touch(2 * profile_.threads * x.size(1), x.dtype());
  return dx;
}

}  // namespace neap::step
