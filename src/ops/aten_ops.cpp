// Common operations on libtorch. Norms and attention are in aten_kernels.cpp, reductions in
// aten_reductions.cpp.
#include "ops/aten_ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/format.h"
#include "base/status.h"
#include "bridge/host_products.h"
#include "bridge/runtime.h"
#include "bridge/streams.h"
#include "ops/aten_products.h"

namespace neap::ops {

using at::Tensor;
using step::Dtype;
using step::Shape;

namespace {

at::IntArrayRef sizes_of(const Shape& shape) {
  return {shape.begin(), shape.rank()};
}

// libtorch's CPU kernels create temporaries that GPU kernels do not: scalars as tensors, oneDNN's
// scratch, a row of indices. Their size does not grow with a job. So they are in ordinary host
// memory, and only an operation's results use the phase's memory.
using Scratch = bridge::HostScope;

// A comparison as 0 and 1 in the operands' type.
template <class Compare>
Tensor as_numbers(const Tensor& like, const Compare& compare) {
  Tensor boolean = at::empty(like.sizes(), like.options().dtype(at::kBool));
  {
    const Scratch scratch;
    compare(boolean);
  }
  return boolean.to(like.scalar_type());
}

}  // namespace

// ---- making ----

Tensor AtenOps::empty(const Shape& shape, Dtype dtype) const {
  return at::empty(sizes_of(shape), at::dtype(to_aten(dtype)).device(device_));
}
Tensor AtenOps::zeros(const Shape& shape, Dtype dtype) const {
  return at::zeros(sizes_of(shape), at::dtype(to_aten(dtype)).device(device_));
}
Tensor AtenOps::ones_like(const Tensor& t) const {
  return at::ones(t.sizes(), t.options());
}
Tensor AtenOps::filled_like(const Tensor& t, double value) const {
  return at::full({}, value, at::dtype(at::kFloat).device(t.device()));
}
Tensor AtenOps::clone(const Tensor& t) const {
  return t.clone(at::MemoryFormat::Contiguous);
}
Tensor AtenOps::iota(std::int64_t n, std::int64_t stride) const {
  return at::arange(0, n * stride, stride, at::dtype(at::kLong).device(device_));
}
Tensor AtenOps::from_host(const std::vector<float>& values) const {
  return from_values(values.data(), std::ssize(values), at::kFloat);
}
Tensor AtenOps::from_host(const std::vector<std::int64_t>& values) const {
  return from_values(values.data(), std::ssize(values), at::kLong);
}
Tensor AtenOps::from_values(const void* values, std::int64_t count, at::ScalarType type) const {
  // Only read.
  const Tensor view = at::from_blob(const_cast<void*>(values), {count}, at::dtype(type));  // NOLINT
  return device_.is_cpu() ? view.clone() : upload(view, type);
}
Tensor AtenOps::to_device(const Tensor& t) const {
  // Batches on the host store tokens and positions as int32, which kernels read as int64.
  const at::ScalarType type = t.scalar_type() == at::kInt ? at::kLong : t.scalar_type();
  const bool there = t.device().type() == device_.type();
  return there && type == t.scalar_type() ? t : upload(t, type);
}
Tensor AtenOps::staged(const Tensor& t, at::ScalarType type) const {
  const bridge::HostScope host;
  return at::empty(t.sizes(), at::dtype(type).pinned_memory(!device_.is_cpu())).copy_(t);
}
Tensor AtenOps::upload(const Tensor& t, at::ScalarType type) const {
  return staged(t, type).to(device_, type, /*non_blocking=*/true);
}
Tensor AtenOps::to_host(const Tensor& t) const {
  return bridge::to_host(t);
}
void AtenOps::wait_for_device() const {
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.getStream(device_).synchronize();
}
AtenOps::Mark AtenOps::mark() const {
  if (device_.is_cpu()) return {};
  c10::Event event(device_.type());
  event.record(bridge::current_stream(device_));
  return event;
}
Tensor AtenOps::to_pinned(const Tensor& t) const {
  if (!t.is_cuda()) return bridge::to_host(t);
  const bridge::HostScope host;
  Tensor copy = at::empty(t.sizes(), t.options().device(at::kCPU).pinned_memory(true));
  copy.copy_(t, /*non_blocking=*/true);
  return copy;
}
Tensor AtenOps::from_pinned(const Tensor& t) const {
  return t.to(device_, t.scalar_type(), /*non_blocking=*/true);
}
double AtenOps::read(const Tensor& t) const {
  return t.item<double>();
}
std::vector<double> AtenOps::read_all(const Tensor& t) const {
  const bridge::HostScope host;
  const Tensor values = bridge::to_host(t).to(at::kDouble);
  const double* first = values.const_data_ptr<double>();
  return {first, first + values.numel()};
}

// ---- views ----

Tensor AtenOps::view(const Tensor& t, const Shape& shape) const {
  return t.view(sizes_of(shape));
}
Tensor AtenOps::transpose(const Tensor& t) const {
  return t.transpose(-2, -1);
}
Tensor AtenOps::narrow(const Tensor& t, std::int64_t dimension, std::int64_t first,
                       std::int64_t count) const {
  return t.narrow(dimension, first, count);
}
Tensor AtenOps::select(const Tensor& t, std::int64_t dimension, std::int64_t index) const {
  return t.select(dimension, index);
}
Tensor AtenOps::by_head(const Tensor& x, std::int64_t sequences) const {
  return x.view({sequences, -1, x.size(1), x.size(2)}).transpose(1, 2);
}
// By value, so that a moved argument is freed after the conversion.
Tensor AtenOps::convert(Tensor t, Dtype dtype) const {
  if (t.scalar_type() == to_aten(dtype)) return t;
  return t.to(to_aten(dtype));
}

// ---- products ----

Tensor AtenOps::product(const Tensor& a, const Tensor& b) const {
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  if (multiply_tuned(kernels_.own, out, a, b)) return out;
  const Scratch scratch;
  return bridge::product_out(out, a, b);
}
Tensor AtenOps::product_plus(const Tensor& bias, const Tensor& a, const Tensor& b) const {
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  if (multiply_tuned(kernels_.own, out, a, b, {.bias = bias})) return out;
  const Scratch scratch;
  return bridge::product_plus_out(out, bias, a, b);
}
void AtenOps::add_product_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha) const {
  if (multiply_tuned(kernels_.own, c, a, b, {alpha, /*adds=*/true})) return;
  const Scratch scratch;
  bridge::add_product_(c, a, b, alpha);
}
Tensor AtenOps::batch_product(const Tensor& a, const Tensor& b) const {
  Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  const Scratch scratch;
  return bridge::batch_product_out(out, a, b);
}

// ---- elementwise ----

Tensor AtenOps::add(const Tensor& a, const Tensor& b) const {
  return at::add(a, b);
}
Tensor AtenOps::subtract(const Tensor& a, const Tensor& b) const {
  return at::sub(a, b);
}
Tensor AtenOps::multiply(const Tensor& a, const Tensor& b) const {
  return at::mul(a, b);
}
Tensor AtenOps::divide(const Tensor& a, const Tensor& b) const {
  return at::div(a, b);
}
Tensor AtenOps::maximum(const Tensor& a, const Tensor& b) const {
  return at::maximum(a, b);
}
Tensor AtenOps::minimum(const Tensor& a, const Tensor& b) const {
  return at::minimum(a, b);
}
Tensor AtenOps::plus(const Tensor& a, std::int64_t b) const {
  Tensor out = at::empty(a.sizes(), a.options());
  const Scratch scratch;
  return at::add_out(out, a, at::scalar_tensor(b, at::kLong));
}
Tensor AtenOps::negate(const Tensor& a) const {
  return at::neg(a);
}
Tensor AtenOps::absolute(const Tensor& a) const {
  return at::abs(a);
}
Tensor AtenOps::sign(const Tensor& a) const {
  return at::sign(a);
}
Tensor AtenOps::exp(const Tensor& a) const {
  return at::exp(a);
}
Tensor AtenOps::cosine(const Tensor& a) const {
  return at::cos(a);
}
Tensor AtenOps::sine(const Tensor& a) const {
  return at::sin(a);
}
Tensor AtenOps::sigmoid(const Tensor& a) const {
  return at::sigmoid(a);
}
Tensor AtenOps::log_sigmoid(const Tensor& a) const {
  return at::log_sigmoid(a);
}
Tensor AtenOps::clamp(const Tensor& a, double low, double high) const {
  Tensor out = at::empty(a.sizes(), a.options());
  const Scratch scratch;
  return at::clamp_out(out, a, low, high);
}
void AtenOps::add_(const Tensor& a, const Tensor& b) const {
  a.add_(b);
}
void AtenOps::add_(const Tensor& a, double b) const {
  const Scratch scratch;
  a.add_(b);
}
void AtenOps::subtract_(const Tensor& a, const Tensor& b) const {
  a.sub_(b);
}
void AtenOps::multiply_(const Tensor& a, const Tensor& b) const {
  a.mul_(b);
}
void AtenOps::multiply_into(const Tensor& out, const Tensor& a, const Tensor& b) const {
  Tensor to = out;
  at::mul_out(to, a, b);
}
void AtenOps::divide_(const Tensor& a, const Tensor& b) const {
  a.div_(b);
}
void AtenOps::divide_(const Tensor& a, double b) const {
  const Scratch scratch;
  a.div_(b);
}
void AtenOps::scale_(const Tensor& a, double b) const {
  const Scratch scratch;
  a.mul_(b);
}
void AtenOps::add_scaled_(const Tensor& a, const Tensor& b, double scale) const {
  const Scratch scratch;
  a.add_(b, scale);
}
void AtenOps::add_multiply_(const Tensor& a, const Tensor& b, const Tensor& c, double scale) const {
  const Scratch scratch;
  a.addcmul_(b, c, scale);
}
void AtenOps::sqrt_(const Tensor& a) const {
  a.sqrt_();
}
void AtenOps::rsqrt_(const Tensor& a) const {
  a.rsqrt_();
}
void AtenOps::exp_(const Tensor& a) const {
  Tensor to = a;
  at::exp_(to);
}
void AtenOps::log_(const Tensor& a) const {
  a.log_();
}
void AtenOps::zero_(const Tensor& a) const {
  a.zero_();
}
void AtenOps::copy_(const Tensor& a, const Tensor& b) const {
  a.copy_(b);
}
Tensor AtenOps::above(const Tensor& a, const Tensor& b) const {
  return as_numbers(a, [&](Tensor& out) { at::gt_out(out, a, b); });
}
Tensor AtenOps::above(const Tensor& a, double b) const {
  return as_numbers(a, [&](Tensor& out) { at::gt_out(out, a, b); });
}
Tensor AtenOps::at_least(const Tensor& a, const Tensor& b) const {
  return as_numbers(a, [&](Tensor& out) { at::ge_out(out, a, b); });
}
Tensor AtenOps::at_most(const Tensor& a, double b) const {
  return as_numbers(a, [&](Tensor& out) { at::le_out(out, a, b); });
}
Tensor AtenOps::equal(const Tensor& a, const Tensor& b) const {
  return as_numbers(a, [&](Tensor& out) { at::eq_out(out, a, b); });
}
void AtenOps::softcap_(const Tensor& a, double cap) const {
  const Scratch scratch;
  a.div_(cap).tanh_().mul_(cap);
}
Tensor AtenOps::softcap_slope(const Tensor& a, double cap) const {
  const Tensor out = at::mul(a, a);
  const Scratch scratch;
  return out.mul_(-1 / (cap * cap)).add_(1);
}

Tensor AtenOps::activate(const Tensor& a, spec::Activation kind) const {
  switch (kind) {
    case spec::Activation::kSilu:
      return at::silu(a);
    case spec::Activation::kGelu:
      return at::gelu(a);
    case spec::Activation::kGeluTanh:
      return at::gelu(a, "tanh");
    case spec::Activation::kRelu:
      return at::relu(a);
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}
void AtenOps::activate_(const Tensor& a, spec::Activation kind) const {
  Tensor to = a;
  switch (kind) {
    case spec::Activation::kSilu:
      at::silu_(to);
      return;
    case spec::Activation::kGelu:
      at::gelu_(to);
      return;
    case spec::Activation::kGeluTanh:
      at::gelu_(to, "tanh");
      return;
    case spec::Activation::kRelu:
      at::relu_(to);
      return;
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}
Tensor AtenOps::activate_backward(const Tensor& dy, const Tensor& x, spec::Activation kind) const {
  switch (kind) {
    case spec::Activation::kSilu:
      return at::silu_backward(dy, x);
    case spec::Activation::kGelu:
      return at::gelu_backward(dy, x);
    case spec::Activation::kGeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case spec::Activation::kRelu:
      return at::threshold_backward(dy, x, 0);
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}

// ---- indices ----

Tensor AtenOps::take_rows_from_host(const Tensor& table, const Tensor& indices) const {
  if (!device_.is_cuda()) return take_rows(table, indices);
  const Tensor rows = [&] {
    const bridge::HostScope host;
    return at::index_select(table, 0, indices.to(at::kCPU));
  }();
  return rows.to(device_);
}
Tensor AtenOps::take_rows(const Tensor& table, const Tensor& indices) const {
  return table.index_select(0, indices);
}
void AtenOps::add_to_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows) const {
  if (kernels_.own.add_rows(dtype(table), dtype(rows), rows.size(1)))
    return own_add_to_rows_(table, indices, rows);
  const Tensor values = rows.to(table.scalar_type());
  // Uses each device's deterministic kernel. The other one adds atomically: index_put_ for float32 on
  // the CPU with several threads, index_add_ on CUDA.
  if (table.is_cuda()) {
    // Unsafe: skips the check of indices, which would wait for the device. The forward pass has
    // checked them.
    Tensor rows_of = table;
    (void)at::_index_put_impl_(rows_of, {indices}, values, /*accumulate=*/true, /*unsafe=*/true);
  } else {
    const Scratch scratch;
    table.index_add_(0, indices, values);
  }
}
void AtenOps::put_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows) const {
  const Scratch scratch;
  table.index_copy_(0, indices, rows);
}
Tensor AtenOps::gather_last(const Tensor& a, const Tensor& indices) const {
  return a.gather(1, indices.unsqueeze(1)).squeeze(1);
}
void AtenOps::add_to_last_(const Tensor& a, const Tensor& indices, const Tensor& values) const {
  a.scatter_add_(1, indices.unsqueeze(1), values.unsqueeze(1));
}
Tensor AtenOps::last_rows(const Tensor& lengths, std::int64_t length) const {
  const Tensor out = iota(lengths.size(0), length);
  const Scratch scratch;
  return out.add_(lengths).sub_(1);
}

}  // namespace neap::ops
