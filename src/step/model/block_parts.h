// Norms and projections to heads, forward and backward, which blocks and heads share.
#pragma once

#include <utility>

#include "step/model/saved_block.h"
#include "step/operations/linear.h"

namespace neap::step {

template <class Ops, class T = typename Ops::Tensor>
T norm(Ops& ops, const spec::Architecture& a, const Norm<T>& p, const T& x,
       NormStatistics<T>* statistics) {
  NormResult<T> r = ops.norm(a.norm, x, p.weight, p.bias, a.norm_eps);
  if (statistics != nullptr) *statistics = {std::move(r.mean), std::move(r.rstd)};
  return std::move(r.y);
}

/// Returns the gradient of x from dy (N, C), which is consumed, plus `added` (N, C), which may be
/// undefined. `later` is set if the block's weight gradients are computed later.
template <class Ops, class T = typename Ops::Tensor>
T norm_backward(Ops& ops, const spec::Architecture& a, const Norm<T>& p, T x,
                NormStatistics<T> statistics, const T& dy, GradientQueue<T>* later = nullptr,
                const T& added = {}) {
  const Norm<T> to = norm_to_add(ops, p, later);
  if (a.norm != spec::NormKind::kLayerNorm && ops.own_norm_rows(ops.dtype(x), x.size(1)))
    return ops.own_rms_norm_backward(a.norm, dy, x, statistics.rstd, to.weight, to.d_weight, added);
  T dx = ops.norm_backward(a.norm, dy, x, statistics.mean, statistics.rstd, to.weight, to.d_weight,
                           to.d_bias);
  if (added.defined()) ops.add_(dx, added);
  return dx;
}

/// Rows of a fused projection.
inline Shape fused_shape(const spec::Architecture& a, std::int64_t rows) {
  const std::int64_t heads = a.num_attention_heads;
  return a.qkv == spec::QkvLayout::kInTurn
             ? Shape{rows, heads + 2 * a.num_key_value_heads, a.head_dim}
             : Shape{rows, heads, 3, a.head_dim};
}
/// The queries (0), keys (1) or values (2) of a fused projection, as a view.
template <class Ops, class T = typename Ops::Tensor>
T fused_part(Ops& ops, const spec::Architecture& a, const T& all, std::int64_t part) {
  if (a.qkv == spec::QkvLayout::kPerHead) return ops.select(all, 2, part);
  const std::int64_t heads = a.num_attention_heads;
  const std::int64_t groups = a.num_key_value_heads;
  return part == 0 ? ops.narrow(all, 1, 0, heads)
                   : ops.narrow(all, 1, heads + (part - 1) * groups, groups);
}

/// Whether Neap's kernel for few rows multiplies h (N, C) by the three matrices at once.
template <class Ops, class T = typename Ops::Tensor>
[[nodiscard]] bool heads_of_few_rows(const Ops& ops, const Block<T>& w, const T& h) {
  return takes_few_rows(ops, {&w.query, &w.key, &w.value}, h);
}
template <class Ops, class T = typename Ops::Tensor>
[[nodiscard]] bool heads_with_adapters(const Ops& ops, const Block<T>& w, const T& h) {
  return takes_adapted_rows(ops, {&w.query, &w.key, &w.value}, h);
}
/// Whether append_() computes the norms of queries and keys in decoding.
[[nodiscard]] inline bool norms_new_heads(const spec::Architecture& a) {
  return a.query_key_norm && !a.norm_across_heads && a.norm != spec::NormKind::kLayerNorm;
}
template <class T>
RowsNorm<T> rows_norm(const spec::Architecture& a, const Norm<T>& p) {
  return {a.norm, p.weight, p.bias, a.norm_eps};
}
template <class T>
RowNorm<T> row_norm(const spec::Architecture& a, const Norm<T>& p) {
  return {p.weight, a.norm_eps, a.norm == spec::NormKind::kRmsOffset ? 1.0 : 0.0};
}
template <class T>
Heads<T> with_norms(Heads<T> heads, const spec::Architecture& a, const Block<T>& w) {
  if (!norms_new_heads(a)) return heads;
  heads.q_norm = row_norm(a, w.query_norm);
  heads.k_norm = row_norm(a, w.key_norm);
  return heads;
}
/// Whether decoding computes the heads of h (N, C) with fewer products. Not with norms of queries
/// and keys that append_() does not compute: they read contiguous heads.
template <class Ops, class T = typename Ops::Tensor>
[[nodiscard]] bool joins_heads(const Ops& ops, const spec::Architecture& a, const Block<T>& w,
                               const T& h) {
  if (a.query_key_norm && !norms_new_heads(a)) return false;
  if (w.query.has_lora() || w.key.has_lora() || w.value.has_lora())
    return heads_with_adapters(ops, w, h);
  return w.heads.defined() || w.stacked.defined() || heads_of_few_rows(ops, w, h);
}
/// h (N, C) -> all heads, by products with adjacent matrices. Does not add the biases of stacked
/// ones. `norm` of h before that requires heads_of_few_rows().
template <class Ops, class T = typename Ops::Tensor>
Heads<T> project_joined_heads(Ops& ops, const spec::Architecture& a, const Block<T>& w, const T& h,
                              const RowsNorm<T>& norm = {}) {
  const std::int64_t n = h.size(0);
  const std::int64_t heads = a.num_attention_heads;
  const std::int64_t groups = a.num_key_value_heads;
  const auto apart = [&](const T& joined) -> Heads<T> {
    const T all = ops.view(joined, {n, heads + 2 * groups, a.head_dim});
    return {ops.narrow(all, 1, 0, heads), ops.narrow(all, 1, heads, groups),
            ops.narrow(all, 1, heads + groups, groups)};
  };
  if (heads_with_adapters(ops, w, h)) {
    const AdaptedRows<T> rows = adapted_rows(ops, {&w.query, &w.key, &w.value}, h);
    ops.add_row_adapters_(rows.y, rows.by);
    return apart(ops.narrow(rows.y, 1, 0, (heads + 2 * groups) * a.head_dim));
  }
  if (heads_of_few_rows(ops, w, h))
    return apart(ops.few_rows_products(h, {{w.query.weight, w.key.weight, w.value.weight},
                                           {w.query.bias, w.key.bias, w.value.bias},
                                           norm}));
  if (w.heads.defined()) return apart(linear(ops, w.heads, h));
  const std::int64_t first = w.stacked.size(0) - 2;  // of the keys
  Heads<T> out;
  if (first == 0) out.q = ops.view(linear(ops, w.query, h), {n, heads, a.head_dim});
  const T all = ops.products(h, w.stacked);  // (2 or 3, N, out)
  const auto part = [&](std::int64_t i) {
    return ops.view(ops.select(all, 0, i), {n, -1, a.head_dim});
  };
  if (first == 1) {
    out.q = part(0);
    out.q_bias = w.query.bias;
  }
  out.k = part(first);
  out.v = part(first + 1);
  out.k_bias = w.key.bias;
  out.v_bias = w.value.bias;
  return out;
}

/// h (N, C) -> heads: q and k, v, or all. A fused projection computes all with one product.
template <class Ops, class T = typename Ops::Tensor>
Heads<T> project_heads(Ops& ops, const spec::Architecture& a, const Block<T>& w, const T& h,
                       bool query_key, bool value) {
  const std::int64_t n = h.size(0);
  const std::int64_t heads = a.num_attention_heads;
  const std::int64_t d = a.head_dim;
  Fp8Copies<T> copies;
  const auto project = [&](const Linear<T>& p, std::int64_t count) {
    return ops.view(linear(ops, p, h, T(), &copies), {n, count, d});
  };
  Heads<T> out;
  if (a.qkv == spec::QkvLayout::kSeparate) {
    if (query_key) {
      out.q = project(w.query, heads);
      out.k = project(w.key, a.num_key_value_heads);
    }
    if (value) out.v = project(w.value, a.num_key_value_heads);
    return out;
  }
  const T all = ops.view(linear(ops, w.query_key_value, h), fused_shape(a, n));
  if (query_key) {
    out.q = fused_part(ops, a, all, 0);
    out.k = fused_part(ops, a, all, 1);
  }
  if (value) out.v = fused_part(ops, a, all, 2);
  return out;
}

/// Gradient of h (N, C) from those of the heads, which are consumed. `later` is as in
/// linear_backward.
template <class Ops, class T = typename Ops::Tensor>
T project_heads_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w, const T& h,
                         Heads<T> d, GradientQueue<T>* later = nullptr) {
  const std::int64_t n = h.size(0);
  if (a.qkv != spec::QkvLayout::kSeparate) {
    const T all = ops.empty(fused_shape(a, n), ops.dtype(h));
    std::int64_t i = 0;
    for (T* part : {&d.q, &d.k, &d.v}) {
      ops.copy_(fused_part(ops, a, all, i++), *part);
      *part = T();
    }
    const std::int64_t width = a.query_width() + 2 * a.key_value_width();
    return linear_backward(ops, w.query_key_value, h, ops.view(all, {n, width}), T(), later);
  }
  Fp8Copies<T> copies;
  const auto through = [&](const Linear<T>& p, T heads, std::int64_t width, T into) {
    return linear_backward(ops, p, h, ops.view(heads, {n, width}), std::move(into), later, &copies);
  };
  T dh = through(w.value, std::exchange(d.v, T()), a.key_value_width(), T());
  dh = through(w.key, std::exchange(d.k, T()), a.key_value_width(), std::move(dh));
  return through(w.query, std::exchange(d.q, T()), a.query_width(), std::move(dh));
}

/// The rows that the norm of queries or keys x (N, H, D) reads: (N H, D). If the norm spans heads,
/// they are (N, H D) with the heads of all ranks.
template <class Ops, class T = typename Ops::Tensor>
T head_norm_rows(Ops& ops, const spec::Architecture& a, T x) {
  const std::int64_t n = x.size(0);
  const std::int64_t heads = x.size(1);
  if (!a.norm_across_heads) return ops.view(x, {n * heads, a.head_dim});
  return ops.join_columns(ops.view(x, {n, heads * a.head_dim}), spec::Axis::kTensor);
}
/// The inverse: from such rows to x (N, H, D).
template <class Ops, class T = typename Ops::Tensor>
T of_head_norm_rows(Ops& ops, const spec::Architecture& a, const T& rows, const Shape& heads) {
  return ops.view(a.norm_across_heads ? ops.own_columns(rows, spec::Axis::kTensor) : rows, heads);
}
/// The norm of queries or keys x (N, H, D).
template <class Ops, class T = typename Ops::Tensor>
T head_norm(Ops& ops, const spec::Architecture& a, const Norm<T>& p, const T& x,
            NormStatistics<T>* statistics) {
  return of_head_norm_rows(ops, a, norm(ops, a, p, head_norm_rows(ops, a, x), statistics),
                           {x.size(0), x.size(1), a.head_dim});
}
/// Returns the gradient of x from dy (N, H, D), which is consumed.
template <class Ops, class T = typename Ops::Tensor>
T head_norm_backward(Ops& ops, const spec::Architecture& a, const Norm<T>& p, T x,
                     NormStatistics<T> statistics, const T& dy, GradientQueue<T>* later = nullptr) {
  const Shape heads{dy.size(0), dy.size(1), a.head_dim};
  const T d = head_norm_rows(ops, a, dy);
  return of_head_norm_rows(ops, a,
                           norm_backward(ops, a, p, head_norm_rows(ops, a, std::move(x)),
                                         std::move(statistics), d, later),
                           heads);
}

}  // namespace neap::step
