// Attention on libtorch: kernels, masks, and the handling of packed and context-parallel sequences.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

#include "bridge/attention.h"
#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "step/attention/ring_attention.h"

namespace neap::ops {

using at::Tensor;

namespace {

// Repeats key heads to the number of query heads, for kernels that need it: (B, K, T, D) -> (B, H,
// T, D).
Tensor repeated(const Tensor& t, std::int64_t heads) {
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}

// (B, H, T, D) -> (N, H, D).
Tensor by_row(const Tensor& t) {
  return t.transpose(1, 2).reshape({t.size(0) * t.size(2), t.size(1), t.size(3)});
}
// As by_row(), summed over the repeats of each key head: (N, K, D).
Tensor summed_rows(const Tensor& t, std::int64_t key_heads) {
  const Tensor r = by_row(t);
  const std::int64_t heads = r.size(1);
  return heads == key_heads ? r
                            : r.view({r.size(0), key_heads, heads / key_heads, r.size(2)}).sum(2);
}

// The kernel uses another result layout for one query per sequence, so there are at least two.
std::int64_t at_least_two(std::int64_t rows) {
  return std::max<std::int64_t>(2, rows);
}
std::int64_t longest_of(const step::Spans<Tensor>& spans) {
  return *std::max_element(spans.lengths.begin(), spans.lengths.end());
}

// The ranges of packed sequences without context parallelism.
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

// Uses cuDNN as bridge/attention.h says: for training and scoring, not for generation.
step::AttentionKernel AtenOps::kernel_of(const Tensor& q, const step::ScoreOptions& options,
                                         const step::Spans<Tensor>& spans) const {
  return step::attention_kernel(options, spans, q.is_cuda(),
                                !kernels_.deterministic && !generating_, to_step(q.scalar_type()),
                                q.size(-1));
}

// A row without keys has plus infinity in the kernel's results.
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
  const bridge::AttentionBackward scope(kernels_);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      d_out.view(heads.q.sizes()), heads.q, heads.k, heads.v, saved.out.view(heads.q.sizes()),
      saved.log_sum, ranges.queries, ranges.keys, at_least_two(ranges.most_queries),
      at_least_two(ranges.most_keys), 0.0, ranges.causal, saved.seed, saved.offset,
      saved.options.scale);
  d_out = Tensor();
  saved = {};
  return {dq, dk, dv};
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
  return from_values(starts.data(), std::ssize(starts), at::kInt);
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
  out.log_sum = at::empty({sequences, h, length},
                          q.options().dtype(to_aten(step::wide(to_step(q.scalar_type())))));
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
  const auto summed = [&](const Tensor& t) { return summed_rows(t, key_heads); };
  const bridge::AttentionBackward scope(kernels_);
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
