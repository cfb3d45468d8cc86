// Norms, rotation and attention on libtorch.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

#include "bridge/attention.h"
#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "step/ring_attention.h"

namespace neap::ops {

using at::Tensor;

namespace {

at::ScalarType wide_type(const Tensor& t) {
  return to_aten(step::wide(to_step(t.scalar_type())));
}

// rsqrt(mean(x^2) + eps) a row: (N, 1), wide.
Tensor rms_reciprocal(const Tensor& x, double eps) {
  const Tensor out = at::empty({x.size(0), 1}, x.options().dtype(wide_type(x)));
  const bridge::HostScope scratch;
  out.copy_(at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, wide_type(x)));
  return out.square_().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
}

// What an RMS norm multiplies by, wide: of a parameter's size.
Tensor gain(const Tensor& weight, bool offset) {
  const bridge::HostScope scratch;
  const Tensor wide = weight.to(wide_type(weight));
  return offset ? wide.add(1) : wide;
}

// a * b where a row of `a` meets a number or a parameter: (N, C), wide.
Tensor wide_product(const Tensor& a, const Tensor& b) {
  Tensor out = at::empty(a.sizes(), a.options().dtype(wide_type(a)));
  const bridge::HostScope scratch;
  return at::mul_out(out, a, b);
}

// d += by, converted without the phase's memory where the dtypes differ: parameters of one row.
void add_row(const Tensor& d, const Tensor& by) {
  const bridge::HostScope scratch;
  d.add_(by);
}

// As many key heads as query heads, for kernels that want it: (B, K, T, D) -> (B, H, T, D).
Tensor repeated(const Tensor& t, std::int64_t heads) {
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}

// For one query a sequence the kernel has another layout of its results.
std::int64_t at_least_two(std::int64_t rows) {
  return std::max<std::int64_t>(2, rows);
}
std::int64_t longest_of(const step::Spans<Tensor>& spans) {
  return *std::max_element(spans.lengths.begin(), spans.lengths.end());
}

// Those of packed sequences, whole.
step::PackedRanges<Tensor> ranges_of(const step::Spans<Tensor>& spans) {
  const std::int64_t longest = longest_of(spans);
  return {spans.starts, spans.starts, std::ssize(spans.lengths), longest, longest};
}

// FlashAttention over ranges of rows and keys: (N, H * D).
step::AttentionContext<Tensor> flash_attention(const step::Heads<Tensor>& heads,
                                               const step::PackedRanges<Tensor>& ranges,
                                               const step::ScoreOptions& options) {
  auto [y, log_sum, seed, offset, mask] = at::_flash_attention_forward(
      heads.q, heads.k, heads.v, ranges.queries, ranges.keys, at_least_two(ranges.most_queries),
      at_least_two(ranges.most_keys), 0.0, ranges.causal, false, options.scale);
  step::AttentionContext<Tensor> out;
  out.kernel = step::AttentionKernel::kFlash;
  out.options = options;
  out.out = y.view({y.size(0), -1});
  out.log_sum = log_sum;
  out.seed = seed;
  out.offset = offset;
  return out;
}

// FlashAttention over packed sequences.
step::AttentionContext<Tensor> packed_attention(step::Heads<Tensor> heads,
                                                const step::Spans<Tensor>& spans,
                                                const step::ScoreOptions& options) {
  step::AttentionContext<Tensor> out = flash_attention(heads, ranges_of(spans), options);
  out.spans = spans;
  out.heads = std::move(heads);
  return out;
}

}  // namespace

// cuDNN where bridge/attention.h has it: training and scoring, not generation.
step::AttentionKernel AtenOps::kernel_of(const Tensor& q, const step::ScoreOptions& options,
                                         const step::Spans<Tensor>& spans) const {
  return step::attention_kernel(options, spans, q.is_cuda(),
                                !attention_.deterministic && !generating_, to_step(q.scalar_type()),
                                q.size(-1));
}

// A row without keys has plus infinity in the kernel's own results.
step::AttentionContext<Tensor> AtenOps::attention_of_ranges(
    const step::Heads<Tensor>& heads, const step::PackedRanges<Tensor>& ranges,
    const step::ScoreOptions& options) const {
  step::AttentionContext<Tensor> out = flash_attention(heads, ranges, options);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  out.log_sum.masked_fill_(out.log_sum.eq(kInfinity), -kInfinity);
  return out;
}

step::Heads<Tensor> AtenOps::attention_of_ranges_backward(step::AttentionContext<Tensor> saved,
                                                          const step::PackedRanges<Tensor>& ranges,
                                                          Tensor d_out) const {
  const step::Heads<Tensor>& heads = saved.heads;
  const bridge::AttentionBackward scope(attention_);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      d_out.view(heads.q.sizes()), heads.q, heads.k, heads.v, saved.out.view(heads.q.sizes()),
      saved.log_sum, ranges.queries, ranges.keys, at_least_two(ranges.most_queries),
      at_least_two(ranges.most_keys), 0.0, ranges.causal, saved.seed, saved.offset,
      saved.options.scale);
  d_out = Tensor();
  saved = {};
  return {dq, dk, dv};
}

step::NormResult<Tensor> AtenOps::norm(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                       const Tensor& bias, double eps) const {
  if (kind == spec::NormKind::kLayerNorm) {
    auto [y, mean, rstd] = at::native_layer_norm(
        x, {x.size(-1)}, weight, bias.defined() ? std::optional(bias) : std::nullopt, eps);
    return {y, mean, rstd};
  }
  const bool offset = kind == spec::NormKind::kRmsOffset;
  if (x.is_cuda()) {
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
  // [x1 cos - x2 sin, x2 cos + x1 sin, rest]; the inverse turns back and is also the gradient.
  const double sign = inverse ? -1 : 1;
  const std::int64_t half = cos.size(-1);
  const Tensor c = cos.unsqueeze(1);  // (P, 1, d / 2): over sequences and heads
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

step::AttentionContext<Tensor> AtenOps::attention(step::Heads<Tensor> heads,
                                                  const step::Spans<Tensor>& spans,
                                                  const step::ScoreOptions& options) const {
  if (spans.divided()) {
    const step::AttentionKernel kernel = step::context_kernel(
        options, spans, device_.is_cuda(), to_step(heads.q.scalar_type()), heads.q.size(2));
    return step::context_attention(*this, kernel, std::move(heads), spans, options);
  }
  const step::AttentionKernel kernel = kernel_of(heads.q, options, spans);
  if (step::takes_in_turn(kernel, spans))
    return step::attention_in_turn(*this, kernel, std::move(heads), spans, options);
  return attention_by(kernel, std::move(heads), spans, options);
}

Tensor AtenOps::starts_of(const std::vector<std::int64_t>& lengths) const {
  if (!device_.is_cuda()) return {};
  std::vector<std::int32_t> starts = {0};
  for (const std::int64_t length : lengths)
    starts.push_back(starts.back() + static_cast<std::int32_t>(length));
  return at::tensor(starts, at::kInt).to(device_);
}

std::pair<Tensor, Tensor> AtenOps::places_of(const std::vector<std::int64_t>& lengths,
                                             std::int64_t ranks) const {
  const spec::ContextPlaces places = spec::context_places(lengths, ranks);
  Tensor of_tokens = from_host(places.rows);
  return {std::move(of_tokens), from_host(places.tokens)};
}

step::AttentionContext<Tensor> AtenOps::attention_by(step::AttentionKernel kernel,
                                                     step::Heads<Tensor> heads,
                                                     const step::Spans<Tensor>& spans,
                                                     const step::ScoreOptions& options) const {
  if (kernel == step::AttentionKernel::kProducts)
    return step::chunked_attention(*this, std::move(heads), spans.sequences, options);
  if (spans.packed()) return packed_attention(std::move(heads), spans, options);
  const std::int64_t sequences = spans.sequences;
  const std::int64_t length = spans.length;
  step::AttentionContext<Tensor> out;
  out.options = options;
  out.spans = spans;
  const std::int64_t h = heads.q.size(1);
  const std::int64_t rows = heads.q.size(0);
  const std::int64_t width = h * heads.q.size(2);
  out.heads = std::move(heads);
  out.kernel = kernel;
  const auto [q, k, v] = step::by_head(*this, out.heads, sequences);
  if (out.kernel == step::AttentionKernel::kCudnn) {
    auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt,
                                                          /*compute_log_sumexp=*/true, 0.0, true,
                                                          false, options.scale);
    out.out = std::get<0>(result).transpose(1, 2).reshape({rows, width});
    out.log_sum = std::get<1>(result);
    out.seed = std::get<6>(result);
    out.offset = std::get<7>(result);
    return out;
  }
  if (out.kernel == step::AttentionKernel::kFlash) {
    auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true, false, options.scale);
    out.out = std::get<0>(result).transpose(1, 2).reshape({rows, width});
    out.log_sum = std::get<1>(result);
    out.seed = std::get<6>(result);
    out.offset = std::get<7>(result);
    return out;
  }
  if (out.kernel == step::AttentionKernel::kEfficient) {
    auto [y, log_sum, seed, offset] = at::_scaled_dot_product_efficient_attention(
        q, repeated(k, h), repeated(v, h), std::nullopt, /*compute_log_sumexp=*/true, 0.0, true,
        options.scale);
    out.out = y.transpose(1, 2).reshape({rows, width});
    out.log_sum = log_sum;
    out.seed = seed;
    out.offset = offset;
    return out;
  }
  out.out = at::empty({rows, width}, q.options());
  out.log_sum = at::empty({sequences, h, length}, q.options().dtype(wide_type(q)));
  const bridge::HostScope scratch;
  auto [y, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, repeated(k, h), repeated(v, h), 0.0, true, std::nullopt, options.scale);
  out.out.view({sequences, length, h, -1}).copy_(y.transpose(1, 2));
  out.log_sum.copy_(log_sum);
  return out;
}

step::Heads<Tensor> AtenOps::attention_backward(step::AttentionContext<Tensor> saved,
                                                Tensor d_out) const {
  if (saved.spans.divided())
    return step::context_attention_backward(*this, std::move(saved), std::move(d_out));
  if (!saved.parts.empty())
    return step::attention_in_turn_backward(*this, std::move(saved), std::move(d_out));
  if (saved.kernel == step::AttentionKernel::kProducts)
    return step::chunked_attention_backward(*this, std::move(saved), std::move(d_out));
  if (saved.spans.packed()) {
    const step::PackedRanges<Tensor> ranges = ranges_of(saved.spans);
    return attention_of_ranges_backward(std::move(saved), ranges, std::move(d_out));
  }
  const std::int64_t h = saved.heads.q.size(1);
  const std::int64_t d = saved.heads.q.size(2);
  const std::int64_t sequences = saved.spans.sequences;
  const std::int64_t length = saved.spans.length;
  const std::int64_t rows = sequences * length;
  Tensor dy = by_head(d_out.view({rows, h, d}), sequences);
  d_out = Tensor();
  Tensor y = by_head(saved.out.view({rows, h, d}), sequences);
  const auto& o = saved.options;
  const std::int64_t key_heads = saved.heads.k.size(1);
  const std::int64_t keys = saved.heads.k.size(0) / sequences;
  step::ByHead<Tensor> operands = step::by_head(*this, saved.heads, sequences);
  const Tensor &q = operands.q, &k = operands.k, &v = operands.v;
  const auto release = [&] {
    dy.reset();
    y.reset();
    operands = {};
    saved = {};
  };
  const auto by_row = [&](const Tensor& t) {  // (B, H, T, D) -> (N, H, D)
    return t.transpose(1, 2).reshape({sequences * t.size(2), t.size(1), d});
  };
  const auto summed = [&](const Tensor& t) {  // over the repeats of each key head
    const Tensor r = by_row(t);
    return r.size(1) == key_heads ? r : r.view({rows, key_heads, h / key_heads, d}).sum(2);
  };
  const bridge::AttentionBackward scope(attention_);
  if (saved.kernel == step::AttentionKernel::kCudnn) {
    auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        dy, q, k, v, y, saved.log_sum, saved.seed, saved.offset, {}, {}, {}, length, length, 0.0,
        true, o.scale);
    release();
    return {by_row(dq), summed(dk), summed(dv)};
  }
  if (saved.kernel == step::AttentionKernel::kFlash) {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        dy, q, k, v, y, saved.log_sum, {}, {}, length, keys, 0.0, true, saved.seed, saved.offset,
        o.scale);
    release();
    return {by_row(dq), by_row(dk), by_row(dv)};
  }
  if (saved.kernel == step::AttentionKernel::kEfficient) {
    auto [dq, dk, dv, d_bias] = at::_scaled_dot_product_efficient_attention_backward(
        dy, q, repeated(k, h), repeated(v, h), {}, y, saved.log_sum, saved.seed, saved.offset, 0.0,
        {true, true, true, false}, true, o.scale);
    release();
    return {by_row(dq), summed(dk), summed(dv)};
  }
  step::Heads<Tensor> out{at::empty({rows, h, d}, y.options()),
                          at::empty({rows, key_heads, d}, y.options()),
                          at::empty({rows, key_heads, d}, y.options())};
  {
    const bridge::HostScope scratch;
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, repeated(k, h), repeated(v, h), y, saved.log_sum, 0.0, true, std::nullopt, o.scale);
    out.q.copy_(by_row(dq));
    out.k.copy_(summed(dk));
    out.v.copy_(summed(dv));
  }
  release();
  return out;
}

Tensor AtenOps::causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset,
                            std::int64_t window) const {
  Tensor mask = at::ones({queries, keys}, at::dtype(at::kBool).device(device_));
  const bridge::HostScope scratch;
  mask.tril_(offset);
  if (window > 0) mask.triu_(offset - window + 1);
  return mask;
}

void AtenOps::hide_(const Tensor& a, const Tensor& mask) const {
  Tensor hidden = at::empty(mask.sizes(), mask.options());
  const bridge::HostScope scratch;
  at::logical_not_out(hidden, mask);
  a.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

Tensor AtenOps::chunk_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                const step::ScoreOptions& options) const {
  const std::int64_t n = q.size(0);
  if (!step::chunk_by_flash(options, q.is_cuda(), to_step(q.scalar_type()), q.size(2), n,
                            keys.size(2)))
    return step::attention_of_last(*this, q, keys, values, options);
  return std::get<0>(at::_scaled_dot_product_flash_attention(by_head(q, 1), keys, values, 0.0,
                                                             /*is_causal=*/true, false,
                                                             options.scale))
      .transpose(1, 2)
      .reshape({n, -1});
}

}  // namespace neap::ops
