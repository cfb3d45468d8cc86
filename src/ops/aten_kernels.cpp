// Norms and rotation on libtorch.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bridge/runtime.h"
#include "ops/aten_ops.h"

namespace neap::ops {

using at::Tensor;

namespace {

at::ScalarType wide_type(const Tensor& t) {
  return to_aten(step::wide(to_step(t.scalar_type())));
}

// rsqrt(mean(x^2) + eps) per row: (N, 1), in the wide type.
Tensor rms_reciprocal(const Tensor& x, double eps) {
  const Tensor out = at::empty({x.size(0), 1}, x.options().dtype(wide_type(x)));
  const bridge::HostScope scratch;
  out.copy_(at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, wide_type(x)));
  return out.square_().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
}

// The factor of an RMS norm, in the wide type; it has the parameter's size.
Tensor gain(const Tensor& weight, bool offset) {
  const bridge::HostScope scratch;
  const Tensor wide = weight.to(wide_type(weight));
  return offset ? wide.add(1) : wide;
}

// a * b, where each row of `a` is multiplied by a number or a parameter: (N, C), in the wide type.
Tensor wide_product(const Tensor& a, const Tensor& b) {
  Tensor out = at::empty(a.sizes(), a.options().dtype(wide_type(a)));
  const bridge::HostScope scratch;
  return at::mul_out(out, a, b);
}

// d += by. If the types differ, the conversion does not use the phase's memory, because these are
// single rows.
void add_row(const Tensor& d, const Tensor& by) {
  const bridge::HostScope scratch;
  d.add_(by);
}

}  // namespace

step::NormResult<Tensor> AtenOps::norm(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                       const Tensor& bias, double eps) const {
  if (kind == spec::NormKind::kLayerNorm) {
    auto [y, mean, rstd] = at::native_layer_norm(
        x, {x.size(-1)}, weight, bias.defined() ? std::optional(bias) : std::nullopt, eps);
    return {y, mean, rstd};
  }
  const bool offset = kind == spec::NormKind::kRmsOffset;
  if (x.is_cuda()) {
    if (kind == spec::NormKind::kRms && own_norm_rows(dtype(x), x.size(1)) && x.is_contiguous()) {
      auto [y, rstd] = own_rms_norm(x, weight, eps);
      return {y, {}, rstd};
    }
    auto [y, rstd] =
        at::_fused_rms_norm(x, {x.size(-1)}, offset ? at::add(weight, 1) : weight, eps);
    return {y, {}, rstd};
  }
  const Tensor rstd = rms_reciprocal(x, eps);
  const Tensor scaled = wide_product(x, rstd);
  if (offset) return {scaled.mul_(gain(weight, true)).to(x.scalar_type()), {}, rstd};
  return {scaled.to(x.scalar_type()).mul_(weight), {}, rstd};
}

Tensor AtenOps::rms_norm_backward_on_host(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                                          const Tensor& weight, const Tensor& d_weight,
                                          bool offset) const {
  const Tensor wide_dy = dy.to(wide_type(x));
  const Tensor x_hat = wide_product(x, rstd);
  if (d_weight.defined()) {
    const Tensor product = at::mul(wide_dy, x_hat);
    add_row(d_weight, product.sum(0));
  }
  const Tensor dx = wide_product(wide_dy, gain(weight, offset));
  {
    const Tensor product = at::mul(dx, x_hat);
    Tensor mean = at::empty({x.size(0), 1}, product.options());
    const bridge::HostScope scratch;
    at::mean_out(mean, product, -1, /*keepdim=*/true);
    dx.addcmul_(x_hat, mean, -1).mul_(rstd);
  }
  return dx.to(x.scalar_type());
}

Tensor AtenOps::norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                              const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                              const Tensor& d_weight, const Tensor& d_bias) const {
  if (kind == spec::NormKind::kLayerNorm) {
    auto [dx, dw, db] = at::native_layer_norm_backward(
        dy, x, {x.size(-1)}, mean, rstd, weight, /*bias, of which only the shape counts:*/ weight,
        {true, d_weight.defined(), d_bias.defined()});
    if (d_weight.defined()) add_row(d_weight, dw);
    if (d_bias.defined()) add_row(d_bias, db);
    return dx;
  }
  const bool offset = kind == spec::NormKind::kRmsOffset;
  if (!x.is_cuda()) return rms_norm_backward_on_host(dy, x, rstd, weight, d_weight, offset);
  auto [dx, dw] = at::_fused_rms_norm_backward(
      dy, x, {x.size(-1)}, rstd, offset ? at::add(weight, 1) : weight, {true, d_weight.defined()});
  if (d_weight.defined()) d_weight.add_(dw);
  return dx;
}

Tensor AtenOps::rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) const {
  // [x1 cos - x2 sin, x2 cos + x1 sin, rest]. The inverse rotation is also the gradient.
  const double sign = inverse ? -1 : 1;
  if (own_kernels(dtype(x))) return turned(x, cos, sin, sign);
  const std::int64_t half = cos.size(-1);
  const Tensor c = cos.unsqueeze(1);  // (P, 1, d / 2): broadcast over sequences and heads
  const Tensor s = sin.unsqueeze(1);
  Tensor y = at::empty(x.sizes(), x.options());
  const auto by_position = [&](const Tensor& t) {
    return t.view({-1, cos.size(0), t.size(1), t.size(2)});
  };
  const Tensor from = by_position(x);
  const Tensor to = by_position(y);
  const Tensor x1 = from.narrow(-1, 0, half);
  const Tensor x2 = from.narrow(-1, half, half);
  Tensor y1 = to.narrow(-1, 0, half);
  Tensor y2 = to.narrow(-1, half, half);
  at::mul_out(y1, x1, c).addcmul_(x2, s, -sign);
  at::mul_out(y2, x2, c).addcmul_(x1, s, sign);
  if (const std::int64_t rest = x.size(-1) - 2 * half; rest > 0)
    to.narrow(-1, 2 * half, rest).copy_(from.narrow(-1, 2 * half, rest));
  return y;
}

}  // namespace neap::ops
