// A transformer block, forward and backward, and what one keeps for the other.
//
// N rows of tokens, C hidden, H query and K key heads of D, F intermediate.
// Order and lifetime of temporaries are part of the meaning: the plan runs this same code with
// operations that only count.
#pragma once

#include <algorithm>
#include <utility>

#include "step/linear.h"
#include "step/operations.h"

namespace neap::step {

/// Elements of the widest tensor of one chunk of rows of an MLP, when nothing is kept.
constexpr std::int64_t kMlpChunkElements = std::int64_t{1} << 25;

template <class T>
struct SavedNorm {
  T input;       // (N, C)
  T mean, rstd;  // (N, 1); mean undefined for RMS norms
};

template <class T>
struct SavedAttention {
  T input;                            // (N, C): what q, k and v are projected from
  SavedNorm<T> query_norm, key_norm;  // of (N * H, D), (N * K, D)
  AttentionContext<T> core;
};

template <class T>
struct SavedMlp {
  T input;     // (N, C)
  T gate, up;  // (N, F); gate undefined where the MLP is not gated
};

/// Norms around attention or the MLP; those that the architecture lacks stay undefined.
template <class T>
struct SavedNorms {
  SavedNorm<T> before, after;
};

/// All that a block's backward needs. Full recomputation keeps `input` and makes the rest again.
template <class T>
struct SavedBlock {
  T input;  // (N, C)
  SavedNorms<T> attention_norms, mlp_norms;
  SavedAttention<T> attention;
  SavedMlp<T> mlp;
};

/// The rows of a batch: `sequences` of `length` tokens, one after another, and their rotation.
template <class T>
struct Rows {
  std::int64_t sequences = 0, length = 0;
  T positions;  // (P,) int64: length of them, or one a row when decoding
  T cos, sin;   // (P, d / 2); undefined with learned positions
};

template <class Ops, class T = typename Ops::Tensor>
T norm(Ops& ops, const spec::Architecture& a, const Norm<T>& p, const T& x, SavedNorm<T>* saved) {
  NormResult<T> r = ops.norm(a.norm, x, p.weight, p.bias, a.norm_eps);
  if (saved != nullptr) *saved = {x, std::move(r.mean), std::move(r.rstd)};
  return std::move(r.y);
}

template <class Ops, class T = typename Ops::Tensor>
T norm_backward(Ops& ops, const spec::Architecture& a, const Norm<T>& p, SavedNorm<T>& saved,
                const T& dy) {
  T dx = ops.norm_backward(a.norm, dy, saved.input, saved.mean, saved.rstd, p.weight, p.d_weight,
                           p.d_bias);
  saved = {};
  return dx;
}

// ---- attention ----

template <class T>
struct Heads {
  T q;     // (N, H, D)
  T k, v;  // (N, K, D)
};

template <class Ops, class T = typename Ops::Tensor>
Heads<T> project_heads(Ops& ops, const spec::Architecture& a, const Block<T>& w, const T& h) {
  const std::int64_t n = h.size(0);
  const std::int64_t heads = a.num_attention_heads;
  const std::int64_t d = a.head_dim;
  switch (a.qkv) {
    case spec::QkvLayout::kSeparate:
      return {ops.view(linear(ops, w.query, h), {n, heads, d}),
              ops.view(linear(ops, w.key, h), {n, a.num_key_value_heads, d}),
              ops.view(linear(ops, w.value, h), {n, a.num_key_value_heads, d})};
    case spec::QkvLayout::kThirds: {
      const T all = ops.view(linear(ops, w.query_key_value, h), {n, 3, heads, d});
      return {ops.select(all, 1, 0), ops.select(all, 1, 1), ops.select(all, 1, 2)};
    }
    case spec::QkvLayout::kPerHead: {
      const T all = ops.view(linear(ops, w.query_key_value, h), {n, heads, 3, d});
      return {ops.select(all, 2, 0), ops.select(all, 2, 1), ops.select(all, 2, 2)};
    }
  }
  return {};
}

/// Gradient of h (N, C) from those of the heads, which are consumed.
template <class Ops, class T = typename Ops::Tensor>
T project_heads_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w, const T& h,
                         Heads<T> d) {
  const std::int64_t n = h.size(0);
  if (a.qkv != spec::QkvLayout::kSeparate) {
    const bool thirds = a.qkv == spec::QkvLayout::kThirds;
    const std::int64_t heads = a.num_attention_heads;
    const T all = ops.empty(
        thirds ? Shape{n, 3, heads, a.head_dim} : Shape{n, heads, 3, a.head_dim}, ops.dtype(h));
    std::int64_t i = 0;
    for (T* part : {&d.q, &d.k, &d.v}) {
      ops.copy_(ops.select(all, thirds ? 1 : 2, i++), *part);
      *part = T();
    }
    return linear_backward(ops, w.query_key_value, h, ops.view(all, {n, 3 * a.query_width()}));
  }
  T dh = linear_backward(ops, w.value, h, ops.view(d.v, {n, a.key_value_width()}));
  d.v = T();
  dh = linear_backward(ops, w.key, h, ops.view(d.k, {n, a.key_value_width()}), std::move(dh));
  d.k = T();
  return linear_backward(ops, w.query, h, ops.view(d.q, {n, a.query_width()}), std::move(dh));
}

/// A norm over each head's dimensions: x (N, H, D).
template <class Ops, class T = typename Ops::Tensor>
T head_norm(Ops& ops, const spec::Architecture& a, const Norm<T>& p, const T& x,
            SavedNorm<T>* saved) {
  const std::int64_t n = x.size(0);
  const std::int64_t heads = x.size(1);
  return ops.view(norm(ops, a, p, ops.view(x, {n * heads, a.head_dim}), saved),
                  {n, heads, a.head_dim});
}
template <class Ops, class T = typename Ops::Tensor>
T head_norm_backward(Ops& ops, const spec::Architecture& a, const Norm<T>& p, SavedNorm<T>& saved,
                     const T& dy) {
  const std::int64_t n = dy.size(0);
  const std::int64_t heads = dy.size(1);
  return ops.view(norm_backward(ops, a, p, saved, ops.view(dy, {n * heads, a.head_dim})),
                  {n, heads, a.head_dim});
}

/// h (N, C) -> (N, C). `attend(q, k, v)` takes the rotated heads and gives (N, H * D).
template <class Ops, class Attend, class T = typename Ops::Tensor>
T attention(Ops& ops, const spec::Architecture& a, const Block<T>& w, T h, const Rows<T>& rows,
            SavedAttention<T>* saved, const Attend& attend) {
  Heads<T> heads = project_heads(ops, a, w, h);
  if (saved != nullptr) saved->input = h;
  h = T();
  if (a.query_key_norm) {
    heads.q = head_norm(ops, a, w.query_norm, heads.q, saved ? &saved->query_norm : nullptr);
    heads.k = head_norm(ops, a, w.key_norm, heads.k, saved ? &saved->key_norm : nullptr);
  }
  if (a.rotary.dimensions > 0) {
    heads.q = ops.rotate(heads.q, rows.cos, rows.sin, /*inverse=*/false);
    heads.k = ops.rotate(heads.k, rows.cos, rows.sin, /*inverse=*/false);
  }
  const T out = attend(std::move(heads));
  return linear(ops, w.attention_out, out);
}

template <class Ops, class T = typename Ops::Tensor>
T attention_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w,
                     SavedAttention<T>& saved, const T& dy, const Rows<T>& rows) {
  T d_out = linear_backward(ops, w.attention_out, saved.core.out, dy);
  Heads<T> d = ops.attention_backward(std::move(saved.core), std::move(d_out));
  if (a.rotary.dimensions > 0) {
    d.k = ops.rotate(d.k, rows.cos, rows.sin, /*inverse=*/true);
    d.q = ops.rotate(d.q, rows.cos, rows.sin, /*inverse=*/true);
  }
  if (a.query_key_norm) {
    d.k = head_norm_backward(ops, a, w.key_norm, saved.key_norm, d.k);
    d.q = head_norm_backward(ops, a, w.query_norm, saved.query_norm, d.q);
  }
  const T h = std::move(saved.input);
  return project_heads_backward(ops, a, w, h, std::move(d));
}

// ---- MLP ----

/// h (N, C) -> (N, C). The activated product is not kept: backward makes it again.
template <class Ops, class T = typename Ops::Tensor>
T mlp(Ops& ops, const spec::Architecture& a, const Block<T>& w, T h, SavedMlp<T>* saved) {
  T gate = a.gated ? linear(ops, w.gate, h) : T();
  T up = linear(ops, w.up, h);
  if (saved != nullptr) *saved = {h, gate, up};
  h = T();
  T& activated = a.gated ? gate : up;
  if (saved != nullptr) {
    activated = ops.activate(activated, a.activation);
  } else {
    ops.activate_(activated, a.activation);
  }
  if (a.gated) ops.multiply_(gate, up);
  return linear(ops, w.down, activated);
}

template <class Ops, class T = typename Ops::Tensor>
T mlp_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w, SavedMlp<T>& saved,
               const T& dy) {
  if (!a.gated) {
    T d_up;
    {
      const T activated = ops.activate(saved.up, a.activation);
      const T d = linear_backward(ops, w.down, activated, dy);
      d_up = ops.activate_backward(d, saved.up, a.activation);
    }
    saved.up = T();
    const T h = std::move(saved.input);
    return linear_backward(ops, w.up, h, d_up);
  }
  T d_gate;
  T d_up;
  {
    const T activated = ops.activate(saved.gate, a.activation);
    T product = ops.multiply(activated, saved.up);
    const T d = linear_backward(ops, w.down, product, dy);
    ops.multiply_into(product, d, activated);  // its memory becomes d_up
    d_up = std::move(product);
    ops.multiply_(d, saved.up);
    saved.up = T();
    d_gate = ops.activate_backward(d, saved.gate, a.activation);
  }
  saved.gate = T();
  const T h = std::move(saved.input);
  T dh = linear_backward(ops, w.up, h, d_up);
  d_up = T();
  return linear_backward(ops, w.gate, h, d_gate, std::move(dh));
}

// ---- block ----

/// residual + after(f(before(read))), or over(residual + f(read)); see spec::NormPlacement.
template <class Ops, class F, class T = typename Ops::Tensor>
T residual_part(Ops& ops, const spec::Architecture& a, const Norm<T>& before, const Norm<T>& after,
                T read, T residual, SavedNorms<T>* saved, const F& f) {
  if (a.placement.before)
    read = norm(ops, a, before, read, saved != nullptr ? &saved->before : nullptr);
  T y = f(std::move(read));
  SavedNorm<T>* const saved_after = saved != nullptr ? &saved->after : nullptr;
  if (a.placement.after) y = norm(ops, a, after, y, saved_after);
  ops.add_(y, residual);
  residual = T();
  return a.placement.over ? norm(ops, a, after, y, saved_after) : y;
}

/// From d (N, C), the gradient of the part's result: that of what it read. `d` becomes the gradient
/// of the residual stream.
template <class Ops, class F, class T = typename Ops::Tensor>
T residual_part_backward(Ops& ops, const spec::Architecture& a, const Norm<T>& before,
                         const Norm<T>& after, T& d, SavedNorms<T>& saved, const F& f) {
  if (a.placement.over) d = norm_backward(ops, a, after, saved.after, d);
  T dy = d;
  if (a.placement.after) dy = norm_backward(ops, a, after, saved.after, dy);
  T dx = f(std::move(dy));
  return a.placement.before ? norm_backward(ops, a, before, saved.before, dx) : dx;
}

/// x (N, C) -> (N, C) with whatever `attend` does; see attention(). Nothing is kept, the MLP runs
/// in chunks of rows, and x's memory may be reused.
template <class Ops, class Attend, class T = typename Ops::Tensor>
T block_inference(Ops& ops, const spec::Architecture& a, const Block<T>& w, T x,
                  const Rows<T>& rows, const Attend& attend) {
  T y =
      residual_part(ops, a, w.attention_norm, w.attention_after_norm, x, x, NoSaved<T>(), [&](T h) {
        return attention(ops, a, w, std::move(h), rows, static_cast<SavedAttention<T>*>(nullptr),
                         attend);
      });
  if (!a.parallel_residual) x = y;
  const auto part = [&](T read, T residual) {
    return residual_part(
        ops, a, w.mlp_norm, w.mlp_after_norm, std::move(read), std::move(residual), NoSaved<T>(),
        [&](T h) { return mlp(ops, a, w, std::move(h), static_cast<SavedMlp<T>*>(nullptr)); });
  };
  const std::int64_t n = y.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kMlpChunkElements / a.intermediate_size);
  if (n <= step) return part(std::move(x), std::move(y));
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t count = std::min(step, n - first);
    const T into = ops.narrow(y, 0, first, count);
    ops.copy_(into, part(ops.narrow(x, 0, first, count), into));
  }
  return y;
}

/// x (N, C) -> (N, C), keeping what backward needs in `saved` (null: nothing). The same bits either
/// way; x is not written to.
template <class Ops, class T = typename Ops::Tensor>
T block_forward(Ops& ops, const spec::Architecture& a, const Block<T>& w, T x, const Rows<T>& rows,
                SavedBlock<T>* saved) {
  if (saved != nullptr) saved->input = x;
  T y = residual_part(ops, a, w.attention_norm, w.attention_after_norm, x, x,
                      saved != nullptr ? &saved->attention_norms : nullptr, [&](T h) {
                        return attention(ops, a, w, std::move(h), rows,
                                         saved ? &saved->attention : nullptr, [&](Heads<T> heads) {
                                           AttentionContext<T> core =
                                               ops.attention(std::move(heads), rows.sequences,
                                                             rows.length, score_options(a));
                                           T out = core.out;
                                           if (saved != nullptr)
                                             saved->attention.core = std::move(core);
                                           return out;
                                         });
                      });
  if (!a.parallel_residual) x = y;
  return residual_part(ops, a, w.mlp_norm, w.mlp_after_norm, std::move(x), std::move(y),
                       saved != nullptr ? &saved->mlp_norms : nullptr, [&](T h) {
                         return mlp(ops, a, w, std::move(h), saved ? &saved->mlp : nullptr);
                       });
}

/// From d (N, C), the gradient of the block's result: that of its input. Adds the gradients of `w`.
template <class Ops, class T = typename Ops::Tensor>
T block_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w, SavedBlock<T> saved, T d,
                 const Rows<T>& rows) {
  saved.input = T();
  T dx = residual_part_backward(ops, a, w.mlp_norm, w.mlp_after_norm, d, saved.mlp_norms,
                                [&](T dy) { return mlp_backward(ops, a, w, saved.mlp, dy); });
  if (!a.parallel_residual) {
    ops.add_(dx, d);
    d = std::move(dx);
    dx = T();
  }
  T more = residual_part_backward(
      ops, a, w.attention_norm, w.attention_after_norm, d, saved.attention_norms,
      [&](T dy) { return attention_backward(ops, a, w, saved.attention, dy, rows); });
  ops.add_(more, d);
  if (dx.defined()) ops.add_(more, dx);
  return more;
}

}  // namespace neap::step
