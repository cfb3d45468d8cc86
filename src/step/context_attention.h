// Attention of packed sequences whose tokens ranks divide (spec/context_parallel.h): each rank gathers keys and values
// of all tokens and attends from its own, as Llama 3 does. Backward gathers them again and leaves each rank the sums of
// their gradients.
//
// A rank's tokens of a sequence are two ranges, and the queries of one are those of the last of the keys before its
// end. So kernels need no mask of their own: causal, with windows and biases by distance, they go by whole sequences.
//
// n rows of this rank, N tokens of all sequences, H query heads and K key heads of D.
#pragma once

#include <utility>

#include "step/attention.h"

namespace neap::step {

/// A range of a rank's tokens, and the keys of its sequence before the range's end.
struct ContextPiece {
  std::int64_t row = 0, rows = 0;        ///< of this rank
  std::int64_t first_key = 0, keys = 0;  ///< of all tokens
};
template <class T, class Visit>
void for_each_piece(const Spans<T>& spans, const Visit& visit) {
  std::int64_t first_row = 0, first_token = 0;
  for (const std::int64_t length : spans.lengths) {
    std::int64_t row = first_row;
    for (const spec::TokenRange& range : spec::own_tokens(length, spans.context)) {
      if (range.count > 0) visit(ContextPiece{row, range.count, first_token, range.end()});
      row += range.count;
    }
    first_row += spec::rows_of_each(length, spans.context.ranks);
    first_token += length;
  }
}

/// The keys (0) or values (1) of both (N, 2, K, D).
template <class Ops, class T = typename Ops::Tensor>
T side_of(Ops& ops, const T& both, std::int64_t side) {
  return ops.select(both, 1, side);
}

/// Keys and values of all tokens in their order, (N, 2, K, D), from this rank's.
template <class Ops, class T = typename Ops::Tensor>
T join_keys(Ops& ops, const Heads<T>& own, const Spans<T>& spans) {
  const std::int64_t n = own.k.size(0), heads = own.k.size(1), width = own.k.size(2);
  T rows;  // of all ranks
  {
    const T both = ops.empty({n, 2, heads, width}, ops.dtype(own.k));
    ops.copy_(side_of(ops, both, 0), own.k);
    ops.copy_(side_of(ops, both, 1), own.v);
    rows = ops.join_rows(ops.view(both, {n, -1}), spec::Axis::kContext);
  }
  rows = ops.take_rows(rows, spans.rows_of_tokens);
  return ops.view(rows, {-1, 2, heads, width});
}

/// This rank's rows (n, 2, K, D) of the sums of all ranks' gradients d (N + 1, 2, K, D), the last of which is that of
/// padding.
template <class Ops, class T = typename Ops::Tensor>
T own_key_gradients(Ops& ops, T d, const Spans<T>& spans) {
  const std::int64_t heads = d.size(2), width = d.size(3);
  T rows = ops.take_rows(ops.view(d, {d.size(0), -1}), spans.tokens_of_rows);  // of all ranks
  d = T();
  rows = ops.sum_to_rows(rows, spec::Axis::kContext);
  return ops.view(rows, {-1, 2, heads, width});
}

/// Rows of padding attend to nothing: zeros. `cuda`: where the operations run.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> context_attention(Ops& ops, bool cuda, Heads<T> heads, const Spans<T>& spans,
                                      const ScoreOptions& options) {
  AttentionContext<T> c;
  c.options = options;
  c.spans = spans;
  c.heads = std::move(heads);
  const T both = join_keys(ops, c.heads, spans);
  const T& q = c.heads.q;
  const Dtype dtype = ops.dtype(q);
  c.out = ops.zeros({q.size(0), q.size(1) * q.size(2)}, dtype);
  c.parts.reserve(2 * spans.lengths.size());
  for_each_piece(spans, [&](const ContextPiece& p) {
    const bool flash = chunk_by_flash(options, cuda, dtype, q.size(2), p.rows, p.keys);
    const auto rows = [&](const T& t) { return ops.narrow(t, 0, p.row, p.rows); };
    const auto keys = [&](std::int64_t side) {
      return ops.narrow(side_of(ops, both, side), 0, p.first_key, p.keys);
    };
    AttentionContext<T>& part = c.parts.emplace_back(
        ops.attention_by(flash ? AttentionKernel::kFlash : AttentionKernel::kProducts,
                         {rows(q), keys(0), keys(1)}, Spans<T>{1, p.rows}, options));
    part.heads = {};
    ops.copy_(rows(c.out), std::exchange(part.out, {}));
  });
  return c;
}

/// From d_out (n, H * D).
template <class Ops, class T = typename Ops::Tensor>
Heads<T> context_attention_backward(Ops& ops, AttentionContext<T> c, T d_out) {
  const T& q = c.heads.q;
  const Dtype dtype = ops.dtype(q);
  Heads<T> out;
  out.q = ops.zeros({q.size(0), q.size(1), q.size(2)}, dtype);
  T d_both;  // (N + 1, 2, K, D), wide
  {
    const T both = join_keys(ops, c.heads, c.spans);
    d_both = ops.zeros({both.size(0) + 1, 2, both.size(2), both.size(3)}, wide(dtype));
    auto part = c.parts.begin();
    for_each_piece(c.spans, [&](const ContextPiece& p) {
      const auto rows = [&](const T& t) { return ops.narrow(t, 0, p.row, p.rows); };
      const auto keys = [&](const T& t, std::int64_t side) {
        return ops.narrow(side_of(ops, t, side), 0, p.first_key, p.keys);
      };
      part->heads = {rows(q), keys(both, 0), keys(both, 1)};
      part->out = rows(c.out);
      const Heads<T> d = ops.attention_backward(std::move(*part++), rows(d_out));
      ops.copy_(rows(out.q), d.q);
      ops.add_(keys(d_both, 0), d.k);
      ops.add_(keys(d_both, 1), d.v);
    });
  }
  const Spans<T> spans = c.spans;
  c = {};
  d_out = T();
  d_both = ops.convert(std::move(d_both), dtype);
  const T own = own_key_gradients(ops, std::move(d_both), spans);
  out.k = ops.clone(side_of(ops, own, 0));
  out.v = ops.clone(side_of(ops, own, 1));
  return out;
}

}  // namespace neap::step
