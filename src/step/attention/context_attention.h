// Attention of packed sequences with context parallelism (spec/ranks/context_parallel.h), as in Llama 3:
// each rank all-gathers keys and values of all tokens, and computes its own queries. Backward
// gathers them again and reduce-scatters their gradients. For ring attention see
// step/attention/ring_attention.h.
//
// A rank's tokens of a sequence are two ranges. The queries of a range belong to the last keys
// before its end. So kernels work as for whole sequences: causal, with windows and ALiBi, without
// an extra mask. FlashAttention computes the first ranges of several sequences in one call and
// their second ranges in another, without copying keys: keys after a range form a range without
// queries (spec/ranks/context_ranges.h).
//
// n rows of this rank, N tokens of all sequences, H query heads and K key heads of size D.
#pragma once

#include <utility>

#include "step/attention/attention.h"

namespace neap::step {

/// A range of a rank's tokens, and the keys of its sequence before the range's end.
struct ContextPiece {
  std::int64_t row = 0, rows = 0;        ///< among this rank's rows
  std::int64_t first_key = 0, keys = 0;  ///< among all tokens
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

/// FlashAttention if it supports all of the job's sequences; otherwise matrix products.
template <class T>
[[nodiscard]] AttentionKernel context_kernel(const ScoreOptions& options, const Spans<T>& spans,
                                             bool cuda, Dtype dtype, std::int64_t width) {
  const AttentionKernel kernel = attention_kernel(options, spans, cuda, false, dtype, width);
  return kernel == AttentionKernel::kFlash ? kernel : AttentionKernel::kProducts;
}

/// The keys (0) or values (1) of `both` (N, 2, K, D).
template <class Ops, class T = typename Ops::Tensor>
T side_of(Ops& ops, const T& both, std::int64_t side) {
  return ops.select(both, 1, side);
}
/// Rows [first, first + count) of side_of().
template <class Ops, class T = typename Ops::Tensor>
T side_rows(Ops& ops, const T& both, std::int64_t side, std::int64_t first, std::int64_t count) {
  return ops.narrow(side_of(ops, both, side), 0, first, count);
}

/// This rank's keys and values in one tensor, (n, 2, K, D).
template <class Ops, class T = typename Ops::Tensor>
T own_keys(Ops& ops, const Heads<T>& own) {
  const T both = ops.empty({own.k.size(0), 2, own.k.size(1), own.k.size(2)}, ops.dtype(own.k));
  ops.copy_(side_of(ops, both, 0), own.k);
  ops.copy_(side_of(ops, both, 1), own.v);
  return both;
}

/// All-gathers keys and values of all tokens in order, (N, 2, K, D).
template <class Ops, class T = typename Ops::Tensor>
T join_keys(Ops& ops, const Heads<T>& own, const Spans<T>& spans) {
  T rows;  // of all ranks
  {
    const T both = own_keys(ops, own);
    rows = ops.join_rows(ops.view(both, {both.size(0), -1}), spec::Axis::kContext);
  }
  rows = ops.take_rows(rows, spans.rows_of_tokens);
  return ops.view(rows, {-1, 2, own.k.size(1), own.k.size(2)});
}

/// This rank's rows (n, 2, K, D) of the sum over ranks of the gradients d (N + 1, 2, K, D). The
/// last row of d belongs to padding.
template <class Ops, class T = typename Ops::Tensor>
T own_key_gradients(Ops& ops, T d, const Spans<T>& spans) {
  const std::int64_t heads = d.size(2), width = d.size(3);
  T rows = ops.take_rows(ops.view(d, {d.size(0), -1}), spans.tokens_of_rows);  // of all ranks
  d = T();
  rows = ops.sum_to_rows(rows, spec::Axis::kContext);
  return ops.view(rows, {-1, 2, heads, width});
}

/// The context of this rank's rows, without results.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> context_without_results(Ops& ops, AttentionKernel kernel, Heads<T> heads,
                                            const Spans<T>& spans, const ScoreOptions& options) {
  AttentionContext<T> c;
  c.kernel = kernel;
  c.options = options;
  c.spans = spans;
  c.heads = std::move(heads);
  c.log_sum = ops.zeros({c.heads.q.size(1), c.heads.q.size(0)}, wide(ops.dtype(c.heads.q)));
  return c;
}

/// The operands of one call, from keys and values `both`.
template <class Ops, class T = typename Ops::Tensor>
Heads<T> operands_of(Ops& ops, const T& q, const T& both, const ContextCall<T>& call) {
  return {ops.narrow(q, 0, call.first_row, call.rows),
          side_rows(ops, both, 0, call.first_key, call.keys),
          side_rows(ops, both, 1, call.first_key, call.keys)};
}
/// The input of the call's backward: the results of its rows over all keys.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> saved_of(Ops& ops, const AttentionContext<T>& c, const T& both,
                             const ContextCall<T>& call) {
  AttentionContext<T> part;
  part.options = c.options;
  part.heads = operands_of(ops, c.heads.q, both, call);
  part.out = ops.narrow(c.out, 0, call.first_row, call.rows);
  part.log_sum = ops.clone(ops.narrow(c.log_sum, 1, call.first_row, call.rows));
  part.seed = c.seed;
  part.offset = c.offset;
  return part;
}

/// Rows [first, first + count) of `x` (n, H * D) or (n, H, D) by head, as a view: (1, H, count, D).
template <class Ops, class T = typename Ops::Tensor>
T head_rows(Ops& ops, const T& x, std::int64_t heads, std::int64_t first, std::int64_t count) {
  return ops.by_head(ops.narrow(ops.view(x, {x.size(0), heads, -1}), 0, first, count), 1);
}
/// log_sum (H, n) of these rows: (1, H, count).
template <class Ops, class T = typename Ops::Tensor>
T sum_rows_of(Ops& ops, const T& log_sum, std::int64_t first, std::int64_t count) {
  return ops.narrow(ops.view(log_sum, {1, log_sum.size(0), -1}), 2, first, count);
}

/// Results of padding rows are not used. The kernel is kFlash or kProducts.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> gathered_attention(Ops& ops, AttentionKernel kernel, Heads<T> heads,
                                       const Spans<T>& spans, const ScoreOptions& options) {
  AttentionContext<T> c = context_without_results(ops, kernel, std::move(heads), spans, options);
  const T both = join_keys(ops, c.heads, spans);
  const T& q = c.heads.q;
  const std::int64_t h = q.size(1);
  c.out = ops.zeros({q.size(0), h * q.size(2)}, ops.dtype(q));
  if (kernel == AttentionKernel::kProducts) {
    for_each_piece(spans, [&](const ContextPiece& p) {
      const auto keys = [&](std::int64_t side) {
        return ops.by_head(side_rows(ops, both, side, p.first_key, p.keys), 1);
      };
      ChunkedAttention<Ops>(ops, {head_rows(ops, q, h, p.row, p.rows), keys(0), keys(1)}, options)
          .forward(head_rows(ops, c.out, h, p.row, p.rows),
                   sum_rows_of(ops, c.log_sum, p.row, p.rows));
    });
    return c;
  }
  // A row has keys in only one of the two rounds, and the other round's result is zero.
  bool first = true;
  for (const std::vector<ContextCall<T>>& round : *spans.rounds) {
    for (const ContextCall<T>& call : round) {
      AttentionContext<T> part =
          ops.attention_of_ranges(operands_of(ops, q, both, call), call.ranges, options);
      ops.add_(ops.narrow(c.out, 0, call.first_row, call.rows), part.out);
      const T sums = ops.narrow(c.log_sum, 1, call.first_row, call.rows);
      ops.copy_(sums, first ? part.log_sum : ops.maximum(sums, part.log_sum));
      c.seed = part.seed;
      c.offset = part.offset;
    }
    first = false;
  }
  return c;
}

/// From d_out (n, H * D).
template <class Ops, class T = typename Ops::Tensor>
Heads<T> gathered_attention_backward(Ops& ops, AttentionContext<T> c, T d_out) {
  const T& q = c.heads.q;
  const std::int64_t h = q.size(1);
  const Dtype dtype = ops.dtype(q);
  Heads<T> out;
  out.q = ops.zeros({q.size(0), h, q.size(2)}, dtype);
  T d_both;  // (N + 1, 2, K, D), wide
  {
    const T both = join_keys(ops, c.heads, c.spans);
    d_both = ops.zeros({both.size(0) + 1, 2, both.size(2), both.size(3)}, wide(dtype));
    if (c.kernel == AttentionKernel::kProducts) {
      for_each_piece(c.spans, [&](const ContextPiece& p) {
        const auto keys = [&](const T& t, std::int64_t side) {
          return ops.by_head(side_rows(ops, t, side, p.first_key, p.keys), 1);
        };
        const auto rows = [&](const T& t) { return head_rows(ops, t, h, p.row, p.rows); };
        ChunkedAttention<Ops>(ops, {rows(q), keys(both, 0), keys(both, 1)}, c.options)
            .backward(rows(c.out), sum_rows_of(ops, c.log_sum, p.row, p.rows), rows(d_out),
                      rows(out.q), ops.select(keys(d_both, 0), 0, 0),
                      ops.select(keys(d_both, 1), 0, 0));
      });
    } else {
      for (const std::vector<ContextCall<T>>& round : *c.spans.rounds) {
        for (const ContextCall<T>& call : round) {
          const auto rows = [&](const T& t) { return ops.narrow(t, 0, call.first_row, call.rows); };
          const Heads<T> d = ops.attention_of_ranges_backward(saved_of(ops, c, both, call),
                                                              call.ranges, rows(d_out));
          ops.add_(rows(out.q), d.q);
          ops.add_(side_rows(ops, d_both, 0, call.first_key, call.keys), d.k);
          ops.add_(side_rows(ops, d_both, 1, call.first_key, call.keys), d.v);
        }
      }
    }
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
