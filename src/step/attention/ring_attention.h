// Ring attention of packed sequences with context parallelism (Liu et al. 2023). A rank starts with
// its own keys and values; then those of the ranks before it arrive, one after another. The next
// ones arrive while it computes. Softmaxes over parts of the keys are combined by their log-sums.
// Backward passes keys and values around again, followed by their gradients: each rank adds its
// share, and the gradients end at the owner of the keys.
//
// So a rank holds keys and values of two ranks, and in backward also two ranks' gradients of them.
//
// n rows of each rank, H query heads and K key heads of size D.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "spec/ranks/context_ranges.h"
#include "step/attention/context_attention.h"

namespace neap::step {

/// A range of this rank's tokens and a range of tokens of the rank whose keys it has. Only queries
/// that see a key, and keys that are seen, are included. Rows are relative to each rank.
struct RingPiece {
  std::int64_t row = 0, rows = 0;
  std::int64_t first_key = 0, keys = 0;
  FirstPlaces places;
  [[nodiscard]] bool own() const { return row == first_key && places.query == places.key; }
};
/// Visits the pieces of a round. For each range of queries, the first visited piece has its own
/// keys.
template <class T, class Visit>
void for_each_ring_piece(const Spans<T>& spans, std::int64_t round, std::int64_t window,
                         const Visit& visit) {
  const spec::ContextShard& shard = spans.context;
  const spec::ContextShard other{shard.ranks, spec::rank_of_round(shard, round)};
  std::int64_t first_row = 0;
  for (const std::int64_t length : spans.lengths) {
    const auto theirs = spec::own_tokens(length, other);
    std::int64_t row = first_row;
    for (const spec::TokenRange& range : spec::own_tokens(length, shard)) {
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        const spec::TokenRange& keys = theirs[i];
        if (range.count == 0 || keys.count == 0 || keys.first > range.first) continue;
        RingPiece p{row,
                    range.count,
                    first_row + (i == 1 ? theirs[0].count : 0),
                    keys.count,
                    {range.first, keys.first}};
        if (window > 0) {
          p.rows = std::min(p.rows, keys.end() + window - 1 - range.first);
          if (p.rows <= 0) continue;
          const std::int64_t hidden =
              std::max<std::int64_t>(0, range.first - window + 1 - keys.first);
          p.first_key += hidden;
          p.keys -= hidden;
          p.places.key += hidden;
        }
        visit(p);
      }
      row += range.count;
    }
    first_row += spec::rows_of_each(length, shard.ranks);
  }
}

/// Calls visit(round, keys) with the keys and values (n, 2, K, D) of each rank, this one's first.
/// The next ones arrive meanwhile.
template <class Ops, class T, class Visit>
void for_each_round(Ops& ops, T keys, const spec::ContextShard& shard, const Visit& visit) {
  for (std::int64_t round = 0; round + 1 < shard.ranks; ++round) {
    T next = ops.empty({keys.size(0), 2, keys.size(2), keys.size(3)}, ops.dtype(keys));
    const auto shift = ops.begin_shift(keys, next, spec::Axis::kContext);
    visit(round, keys);
    ops.finish_shift(shift, spec::Axis::kContext);
    keys = std::move(next);
  }
  visit(shard.ranks - 1, keys);
}

/// Combines softmaxes over different keys. Merges `more`, with log-sums `more_sum`, into `out` (1,
/// H, m, D), wide, with log-sums `log_sum` (1, H, m). `more` has out's shape and is destroyed. A
/// row without keys has the log-sum minus infinity.
template <class Ops, class T = typename Ops::Tensor>
void join_softmax_(Ops& ops, const T& out, const T& log_sum, const T& more, const T& more_sum) {
  const T gap = ops.subtract(more_sum, log_sum);  // (1, H, m)
  const T share = ops.sigmoid(gap);
  ops.subtract_(more, out);
  ops.multiply_(more, ops.view(share, {1, share.size(1), share.size(2), 1}));
  ops.add_(out, more);
  ops.subtract_(log_sum, ops.log_sigmoid(ops.negate(gap)));
}

/// Results of padding rows are not used. The kernel is kFlash or kProducts.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> ring_attention(Ops& ops, AttentionKernel kernel, Heads<T> heads,
                                   const Spans<T>& spans, const ScoreOptions& options) {
  AttentionContext<T> c = context_without_results(ops, kernel, std::move(heads), spans, options);
  const T& q = c.heads.q;
  const std::int64_t n = q.size(0), h = q.size(1), d = q.size(2);
  const Dtype dtype = ops.dtype(q);
  T out = ops.zeros({n, h, d}, wide(dtype));
  const auto take = [&](std::int64_t row, std::int64_t rows, bool first, const T& part,
                        const T& log_sum) {
    const T to = head_rows(ops, out, h, row, rows);
    const T sums = sum_rows_of(ops, c.log_sum, row, rows);
    const T more = ops.convert(head_rows(ops, part, h, 0, rows), wide(dtype));
    if (!first) return join_softmax_(ops, to, sums, more, log_sum);
    ops.copy_(to, more);
    ops.copy_(sums, log_sum);
  };
  for_each_round(
      ops, own_keys(ops, c.heads), spans.context, [&](std::int64_t round, const T& both) {
        if (kernel == AttentionKernel::kProducts) {
          for_each_ring_piece(spans, round, options.window, [&](const RingPiece& p) {
            const auto keys = [&](std::int64_t side) {
              return ops.by_head(side_rows(ops, both, side, p.first_key, p.keys), 1);
            };
            const T part = ops.empty({p.rows, h, d}, dtype);
            const T log_sum = ops.empty({1, h, p.rows}, wide(dtype));
            ChunkedAttention<Ops>(ops, {head_rows(ops, q, h, p.row, p.rows), keys(0), keys(1)},
                                  options, p.places)
                .forward(ops.by_head(part, 1), log_sum);
            take(p.row, p.rows, p.own(), part, log_sum);
          });
          return;
        }
        for (const ContextCall<T>& call : spans.rounds->at(static_cast<std::size_t>(round))) {
          const AttentionContext<T> part =
              ops.attention_of_ranges(operands_of(ops, q, both, call), call.ranges, options);
          take(call.first_row, call.rows, round == 0, part.out,
               ops.view(part.log_sum, {1, h, call.rows}));
          c.seed = part.seed;
          c.offset = part.offset;
        }
      });
  ops.end_shifts(spec::Axis::kContext);
  c.out = ops.view(ops.convert(std::move(out), dtype), {n, h * d});
  return c;
}

/// The wide gradients of keys and values (n, 2, K, D), which follow them around the ring. In each
/// round they arrive from the previous rank, and are sent on to the next.
template <class Ops>
class RingGradients {
  using T = typename Ops::Tensor;

 public:
  RingGradients(Ops& ops, T zeros) : ops_(ops), here_(std::move(zeros)) {}

  /// Call it before the first addition in a round.
  const T& here() {
    if (shift_) {
      ops_.finish_shift(*shift_, spec::Axis::kContext);
      shift_.reset();
      here_ = std::exchange(next_, T());
    }
    return here_;
  }
  /// Ends the round.
  void pass_on() {
    const T& mine = here();
    next_ = ops_.empty({mine.size(0), 2, mine.size(2), mine.size(3)}, ops_.dtype(mine));
    shift_.emplace(ops_.begin_shift(mine, next_, spec::Axis::kContext));
  }
  /// After the last round: the gradients of this rank's keys.
  T take() {
    (void)here();
    return std::exchange(here_, T());
  }

 private:
  Ops& ops_;
  T here_, next_;
  std::optional<typename Ops::Shift> shift_;
};

/// From d_out (n, H * D).
template <class Ops, class T = typename Ops::Tensor>
Heads<T> ring_attention_backward(Ops& ops, AttentionContext<T> c, T d_out) {
  const T& q = c.heads.q;
  const std::int64_t n = q.size(0), h = q.size(1), d = q.size(2);
  const std::int64_t k = c.heads.k.size(1);
  const Dtype dtype = ops.dtype(q);
  T d_q = ops.zeros({n, h, d}, wide(dtype));
  RingGradients<Ops> gradients(ops, ops.zeros({n, 2, k, d}, wide(dtype)));
  for_each_round(
      ops, own_keys(ops, c.heads), c.spans.context, [&](std::int64_t round, const T& both) {
        if (c.kernel == AttentionKernel::kProducts) {
          for_each_ring_piece(c.spans, round, c.options.window, [&](const RingPiece& p) {
            const auto keys = [&](const T& t, std::int64_t side) {
              return ops.by_head(side_rows(ops, t, side, p.first_key, p.keys), 1);
            };
            const auto rows = [&](const T& t) { return head_rows(ops, t, h, p.row, p.rows); };
            const T& sums = gradients.here();
            const T part = ops.empty({p.rows, h, d}, dtype);
            ChunkedAttention<Ops>(ops, {rows(q), keys(both, 0), keys(both, 1)}, c.options, p.places)
                .backward(rows(c.out), sum_rows_of(ops, c.log_sum, p.row, p.rows), rows(d_out),
                          ops.by_head(part, 1), ops.select(keys(sums, 0), 0, 0),
                          ops.select(keys(sums, 1), 0, 0));
            ops.add_(ops.narrow(d_q, 0, p.row, p.rows), part);
          });
        } else {
          for (const ContextCall<T>& call : c.spans.rounds->at(static_cast<std::size_t>(round))) {
            const auto rows = [&](const T& t) {
              return ops.narrow(t, 0, call.first_row, call.rows);
            };
            const Heads<T> part = ops.attention_of_ranges_backward(saved_of(ops, c, both, call),
                                                                   call.ranges, rows(d_out));
            ops.add_(rows(d_q), part.q);
            const T& sums = gradients.here();
            ops.add_(side_rows(ops, sums, 0, call.first_key, call.keys), part.k);
            ops.add_(side_rows(ops, sums, 1, call.first_key, call.keys), part.v);
          }
        }
        gradients.pass_on();
      });
  c = {};
  d_out = T();
  Heads<T> out;
  out.q = ops.convert(std::move(d_q), dtype);
  const T own = ops.convert(gradients.take(), dtype);
  ops.end_shifts(spec::Axis::kContext);
  out.k = ops.clone(side_of(ops, own, 0));
  out.v = ops.clone(side_of(ops, own, 1));
  return out;
}

/// Uses the method that the ranks' shards select.
template <class Ops, class T = typename Ops::Tensor>
AttentionContext<T> context_attention(Ops& ops, AttentionKernel kernel, Heads<T> heads,
                                      const Spans<T>& spans, const ScoreOptions& options) {
  if (spans.context.ring) return ring_attention(ops, kernel, std::move(heads), spans, options);
  return gathered_attention(ops, kernel, std::move(heads), spans, options);
}
template <class Ops, class T = typename Ops::Tensor>
Heads<T> context_attention_backward(Ops& ops, AttentionContext<T> c, T d_out) {
  if (c.spans.context.ring) return ring_attention_backward(ops, std::move(c), std::move(d_out));
  return gathered_attention_backward(ops, std::move(c), std::move(d_out));
}

}  // namespace neap::step
