// Attention by matrix products, for cases that fused kernels lack: soft-capped scores, ALiBi, and
// windows.
//
// Scores exist for one chunk of queries at a time. The backward pass recomputes them from log_sum.
// The code is written over operations like the passes, so a plan counts its memory by running it.
//
// Packed sequences pass through a kernel one after another if it accepts only one length.
//
// B sequences of T tokens, H query heads and K key heads of size D; G = H / K.
#pragma once

#include <algorithm>
#include <utility>

#include "step/operations/operations.h"

namespace neap::step {

/// Elements of one chunk of scores: 128 MiB of float32. A chunk has at least one query of every
/// head.
constexpr std::int64_t kScoreChunkElements = std::int64_t{1} << 25;

/// Whether fused kernels support it: no cap, no ALiBi, and no key hidden by the window.
[[nodiscard]] inline bool is_plain(const ScoreOptions& o, std::int64_t length) {
  return o.softcap == 0 && !o.alibi && (o.window == 0 || o.window >= length);
}

/// The kernel of a batch's attention; `cudnn` is as in fused_kernel. It depends on the job, not on
/// the batch: packed sequences count with the longest possible length.
template <class T>
[[nodiscard]] AttentionKernel attention_kernel(const ScoreOptions& o, const Spans<T>& spans,
                                               bool cuda, bool cudnn, Dtype dtype,
                                               std::int64_t width) {
  if (!is_plain(o, spans.length)) return AttentionKernel::kProducts;
  return fused_kernel(cuda, cudnn && !spans.packed(), dtype, width);
}
/// Whether packed sequences pass through `kernel` one after another.
template <class T>
[[nodiscard]] bool takes_in_turn(AttentionKernel kernel, const Spans<T>& spans) {
  return spans.packed() && kernel != AttentionKernel::kFlash;
}

/// Whether the last `queries` of `keys` tokens use FlashAttention, whose causal mask ends at the
/// last key. It uses another result layout for a single query.
[[nodiscard]] inline bool chunk_by_flash(const ScoreOptions& o, bool cuda, Dtype dtype,
                                         std::int64_t width, std::int64_t queries,
                                         std::int64_t keys) {
  return queries > 1 && is_plain(o, keys) &&
         fused_kernel(cuda, false, dtype, width) == AttentionKernel::kFlash;
}

/// Queries [first, first + count) of every sequence, and the keys that they attend to.
struct QueryChunk {
  std::int64_t first = 0, count = 0;
  std::int64_t first_key = 0, keys = 0;
};
/// Query i is at position `first_place` + i, counted from the first key, and attends to at least
/// one key.
template <class Visit>
void for_each_query_chunk(std::int64_t pairs, std::int64_t queries, std::int64_t keys,
                          std::int64_t first_place, std::int64_t window,
                          std::int64_t chunk_elements, const Visit& visit) {
  // A chunk that is no longer than the window attends to at most two windows of keys.
  const bool slides = window > 0 && window < first_place + queries;
  const std::int64_t widest = slides ? std::min(keys, 2 * window) : keys;
  const std::int64_t most = slides ? std::min(window, queries) : queries;
  const std::int64_t step =
      std::clamp<std::int64_t>(chunk_elements / (pairs * widest), std::int64_t{1}, most);
  for (std::int64_t first = 0; first < queries; first += step) {
    const std::int64_t count = std::min(step, queries - first);
    const std::int64_t place = first_place + first;
    const std::int64_t first_key = slides ? std::max<std::int64_t>(0, place - window + 1) : 0;
    visit(QueryChunk{first, count, first_key, std::min(keys, place + count) - first_key});
  }
}

/// scores (B, H, n, m), wide: adds each head's slope times the key's position; the first key is
/// `first_key`. Softmax ignores a constant per row, so positions can replace distances.
template <class Ops, class T = typename Ops::Tensor>
void add_alibi_(Ops& ops, const T& scores, const ScoreOptions& options, std::int64_t first_key) {
  const std::int64_t heads = scores.size(1);
  const std::int64_t keys = scores.size(3);
  const T slopes = ops.from_host(
      spec::alibi_slopes(std::max(heads, options.all_heads), options.first_head, heads));  // (H,)
  const T places = ops.convert(ops.plus(ops.iota(keys, 1), first_key), Dtype::kFloat32);   // (m,)
  const T bias = ops.convert(ops.multiply(ops.view(slopes, {-1, 1}), places),
                             wide(ops.dtype(scores)));  // (H, m)
  ops.add_(scores, ops.view(bias, {heads, 1, keys}));
}

/// The operands of attention by head, as views. The queries belong to the last tokens.
template <class T>
struct ByHead {
  T q;     // (B, H, Q, D)
  T k, v;  // (B, K, T, D)
};

template <class Ops, class T = typename Ops::Tensor>
ByHead<T> by_head(Ops& ops, const Heads<T>& heads, std::int64_t sequences) {
  return {ops.by_head(heads.q, sequences), ops.by_head(heads.k, sequences),
          ops.by_head(heads.v, sequences)};
}

/// Positions within the sequence of the first query and the first key.
struct FirstPlaces {
  std::int64_t query = 0, key = 0;
};

template <class Ops>
class ChunkedAttention {
  using T = typename Ops::Tensor;

 public:
  /// The queries belong to the sequence's last keys.
  ChunkedAttention(Ops& ops, ByHead<T> operands, const ScoreOptions& options,
                   std::int64_t chunk_elements = kScoreChunkElements)
      : ChunkedAttention(ops, operands, options, {operands.k.size(2) - operands.q.size(2), 0},
                         chunk_elements) {}
  /// Each query must attend to at least one key.
  ChunkedAttention(Ops& ops, ByHead<T> operands, const ScoreOptions& options,
                   const FirstPlaces& places, std::int64_t chunk_elements = kScoreChunkElements)
      : ops_(ops),
        x_(std::move(operands)),
        options_(options),
        places_(places),
        chunk_elements_(chunk_elements),
        sequences_(x_.q.size(0)),
        heads_(x_.q.size(1)),
        key_heads_(x_.k.size(1)),
        queries_(x_.q.size(2)),
        length_(x_.k.size(2)),
        width_(x_.q.size(3)) {}

  /// Writes out (B, H, Q, D) and log_sum (B, H, Q).
  void forward(const T& out, const T& log_sum) {
    for_each_chunk([&](const QueryChunk& c) {
      T scores = scores_of(c, queries(x_.q, c), nullptr);  // (R, m)
      const T top = ops_.max_last(scores);                 // (R, 1)
      ops_.subtract_(scores, top);
      ops_.exp_(scores);
      const T sum = ops_.sum_last(scores);  // (R,)
      ops_.divide_(scores, ops_.view(sum, {-1, 1}));
      const T weights = matrices(ops_.convert(std::move(scores), ops_.dtype(out)), c);
      put(out, c, ops_.batch_product(weights, keys(x_.v, c)));
      ops_.log_(sum);
      ops_.add_(sum, ops_.view(top, {-1}));
      ops_.copy_(ops_.narrow(log_sum, 2, c.first, c.count),
                 ops_.view(sum, {sequences_, heads_, c.count}));
    });
  }

  /// From out and dy (B, H, T, D): writes dq, and adds to dk and dv (B * K, T, D), which are wide.
  void backward(const T& out, const T& log_sum, const T& dy, const T& dq, const T& dk,
                const T& dv) {
    const Dtype dtype = ops_.dtype(x_.q);
    for_each_chunk([&](const QueryChunk& c) {
      const T q = queries(x_.q, c);
      T slope;
      T weights = scores_of(c, q, &slope);  // (R, m), wide
      ops_.subtract_(weights,
                     ops_.view(ops_.clone(ops_.narrow(log_sum, 2, c.first, c.count)), {-1, 1}));
      ops_.exp_(weights);
      const T dy_chunk = queries(dy, c);  // (B * K, G * n, D)
      const T sums = output_sums(out, dy_chunk, c);
      add_to_keys(
          dv, c,
          ops_.batch_product(ops_.transpose(matrices(ops_.convert(weights, dtype), c)), dy_chunk));
      T d = rows(ops_.convert(ops_.batch_product(dy_chunk, ops_.transpose(keys(x_.v, c))),
                              ops_.dtype(log_sum)));
      ops_.subtract_(d, ops_.view(sums, {-1, 1}));
      ops_.multiply_(d, weights);
      weights = T();
      if (slope.defined()) ops_.multiply_(d, std::exchange(slope, {}));
      ops_.scale_(d, options_.scale);
      d = matrices(ops_.convert(std::move(d), dtype), c);
      put(dq, c, ops_.batch_product(d, keys(x_.k, c)));
      add_to_keys(dk, c, ops_.batch_product(ops_.transpose(d), q));
    });
  }

 private:
  template <class Visit>
  void for_each_chunk(const Visit& visit) const {
    for_each_query_chunk(sequences_ * heads_, queries_, length_, behind_first_key(),
                         options_.window, chunk_elements_, visit);
  }
  // Position of the first query, counted from the first key.
  [[nodiscard]] std::int64_t behind_first_key() const { return places_.query - places_.key; }
  // x (B, H, Q, D) -> (B * K, G * n, D), as a copy.
  T queries(const T& x, const QueryChunk& c) {
    return ops_.view(ops_.clone(ops_.narrow(x, 2, c.first, c.count)),
                     {sequences_ * key_heads_, -1, width_});
  }
  // x (B, K, T, D) -> (B * K, m, D), as a copy if there are several sequences.
  T keys(const T& x, const QueryChunk& c) {
    T part = ops_.narrow(x, 2, c.first_key, c.keys);
    if (sequences_ > 1) part = ops_.clone(part);
    return ops_.view(part, {sequences_ * key_heads_, c.keys, width_});
  }
  void put(const T& to, const QueryChunk& c, const T& chunk) {
    ops_.copy_(ops_.narrow(to, 2, c.first, c.count),
               ops_.view(chunk, {sequences_, heads_, c.count, width_}));
  }
  void add_to_keys(const T& to, const QueryChunk& c, const T& chunk) {
    ops_.add_(ops_.narrow(to, 1, c.first_key, c.keys), chunk);
  }
  // Views scores (B * K, G * n, m) as R = B * H * n rows of m, and back.
  T rows(const T& scores) { return ops_.view(scores, {-1, scores.size(-1)}); }
  T matrices(const T& rows, const QueryChunk& c) {
    return ops_.view(rows, {sequences_ * key_heads_, -1, c.keys});
  }

  // Scores of a chunk as rows, wide: scaled, capped, and minus infinity for hidden keys. `slope`
  // receives the cap's derivative.
  T scores_of(const QueryChunk& c, const T& q, T* slope) {
    T s = rows(ops_.batch_product(q, ops_.transpose(keys(x_.k, c))));
    s = ops_.convert(std::move(s), wide(ops_.dtype(q)));
    ops_.scale_(s, options_.scale);
    if (options_.softcap > 0) {
      ops_.softcap_(s, options_.softcap);
      if (slope != nullptr) *slope = ops_.softcap_slope(s, options_.softcap);
    }
    if (options_.alibi)
      add_alibi_(ops_, ops_.view(s, {sequences_, heads_, c.count, c.keys}), options_,
                 places_.key + c.first_key);
    ops_.hide_(ops_.view(s, {-1, c.count, c.keys}),
               ops_.causal_mask(c.count, c.keys, behind_first_key() + c.first - c.first_key,
                                options_.window));
    return s;
  }

  // Sums of dy * out over each head's dimensions: (R,), wide.
  T output_sums(const T& out, const T& dy_chunk, const QueryChunk& c) {
    const Dtype inner = wide(ops_.dtype(dy_chunk));
    const T product = ops_.convert(queries(out, c), inner);
    ops_.multiply_(product, ops_.convert(dy_chunk, inner));
    return ops_.sum_last(rows(product));
  }

  Ops& ops_;
  ByHead<T> x_;
  ScoreOptions options_;
  FirstPlaces places_;
  std::int64_t chunk_elements_;
  std::int64_t sequences_, heads_, key_heads_, queries_, length_, width_;
};

/// The queries belong to a sequence's last keys.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> chunked_attention(Ops& ops, Heads<T> heads, std::int64_t sequences,
                                      const ScoreOptions& options,
                                      std::int64_t chunk_elements = kScoreChunkElements) {
  const std::int64_t n = heads.q.size(0);
  const std::int64_t h = heads.q.size(1);
  const std::int64_t d = heads.q.size(2);
  const Dtype dtype = ops.dtype(heads.q);
  AttentionContext<T> c;
  c.kernel = AttentionKernel::kProducts;
  c.options = options;
  c.spans = {sequences, n / sequences};
  c.heads = std::move(heads);
  c.out = ops.empty({n, h * d}, dtype);
  c.log_sum = ops.empty({sequences, h, c.spans.length}, wide(dtype));
  ChunkedAttention<Ops>(ops, by_head(ops, c.heads, sequences), options, chunk_elements)
      .forward(ops.by_head(ops.view(c.out, {n, h, d}), sequences), c.log_sum);
  return c;
}

/// From d_out (N, H * D).
template <class Ops, class T = typename Ops::Tensor>
Heads<T> chunked_attention_backward(Ops& ops, AttentionContext<T> c, T d_out,
                                    std::int64_t chunk_elements = kScoreChunkElements) {
  const std::int64_t b = c.spans.sequences;
  const std::int64_t n = c.heads.q.size(0);
  const std::int64_t keys = c.heads.k.size(0);
  const std::int64_t h = c.heads.q.size(1);
  const std::int64_t d = c.heads.q.size(2);
  const std::int64_t k = c.heads.k.size(1);
  const Dtype dtype = ops.dtype(c.heads.q);
  const auto heads_of = [&](const T& t) { return ops.by_head(ops.view(t, {n, h, d}), b); };
  Heads<T> out;
  out.q = ops.empty({n, h, d}, dtype);
  T dk = ops.zeros({b * k, keys / b, d}, wide(dtype));
  T dv = ops.zeros({b * k, keys / b, d}, wide(dtype));
  ChunkedAttention<Ops>(ops, by_head(ops, c.heads, b), c.options, chunk_elements)
      .backward(heads_of(c.out), c.log_sum, heads_of(d_out), heads_of(out.q), dk, dv);
  c = {};
  d_out = T();
  const auto by_row = [&](T t) {  // (B * K, T, D) -> (B * T, K, D)
    const T rows = ops.empty({keys, k, d}, dtype);
    ops.copy_(ops.by_head(rows, b), ops.view(t, {b, k, -1, d}));
    return rows;
  };
  out.k = by_row(std::exchange(dk, {}));
  out.v = by_row(std::exchange(dv, {}));
  return out;
}

/// Packed sequences through `kernel`, one after another.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> attention_in_turn(Ops& ops, AttentionKernel kernel, Heads<T> heads,
                                      const Spans<T>& spans, const ScoreOptions& options) {
  AttentionContext<T> c;
  c.kernel = kernel;
  c.options = options;
  c.spans = spans;
  c.heads = std::move(heads);
  const T& q = c.heads.q;
  c.out = ops.empty({q.size(0), q.size(1) * q.size(2)}, ops.dtype(q));
  std::int64_t first = 0;
  for (const std::int64_t length : spans.lengths) {
    const auto rows = [&](const T& t) { return ops.narrow(t, 0, first, length); };
    AttentionContext<T>& part = c.parts.emplace_back(ops.attention_by(
        kernel, {rows(q), rows(c.heads.k), rows(c.heads.v)}, Spans<T>{1, length}, options));
    part.heads = {};
    ops.copy_(rows(c.out), std::exchange(part.out, {}));
    first += length;
  }
  return c;
}

template <class Ops, class T = typename Ops::Tensor>
Heads<T> attention_in_turn_backward(Ops& ops, AttentionContext<T> c, T d_out) {
  const auto like = [&](const T& t) {
    return ops.empty({t.size(0), t.size(1), t.size(2)}, ops.dtype(t));
  };
  Heads<T> out{like(c.heads.q), like(c.heads.k), like(c.heads.v)};
  std::int64_t first = 0;
  for (AttentionContext<T>& part : c.parts) {
    const std::int64_t length = part.spans.length;
    const auto rows = [&](const T& t) { return ops.narrow(t, 0, first, length); };
    part.heads = {rows(c.heads.q), rows(c.heads.k), rows(c.heads.v)};
    part.out = rows(c.out);
    const Heads<T> d = ops.attention_backward(std::move(part), rows(d_out));
    ops.copy_(rows(out.q), d.q);
    ops.copy_(rows(out.k), d.k);
    ops.copy_(rows(out.v), d.v);
    first += length;
  }
  return out;
}

/// The last n tokens of one sequence, q (n, H, D), attend to its keys and values (1, K, T, D): (n,
/// H * D). Scores exist for one chunk of queries at a time.
template <class Ops, class T = typename Ops::Tensor>
T attention_of_last(Ops& ops, const T& q, const T& keys, const T& values,
                    const ScoreOptions& options,
                    std::int64_t chunk_elements = kScoreChunkElements) {
  const std::int64_t n = q.size(0);
  const std::int64_t h = q.size(1);
  const Dtype dtype = ops.dtype(q);
  const T out = ops.empty({n, h, q.size(2)}, dtype);
  const T log_sum = ops.empty({1, h, n}, wide(dtype));
  ChunkedAttention<Ops>(ops, {ops.by_head(q, 1), keys, values}, options, chunk_elements)
      .forward(ops.by_head(out, 1), log_sum);
  return ops.view(out, {n, -1});
}

}  // namespace neap::step
