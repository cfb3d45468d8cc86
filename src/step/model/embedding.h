// The embedding: tokens to hidden states.
//
// Hidden states are (N, C) rows, or (n, C) with sequence parallelism.
#pragma once

#include <utility>

#include "step/model/block_parts.h"
#include "step/operations/rows.h"

namespace neap::step {

/// The factor of models that scale their embedding, rounded to the embedding's type.
template <class Ops, class T = typename Ops::Tensor>
double embedding_scale(Ops& ops, const Weights<T>& w) {
  return spec::rounded(w.architecture.embedding_scale, ops.dtype(w.token_table));
}

/// Reads an embedding that is not on the device: at indices (N,) -> (N, E).
template <class Ops, class T = typename Ops::Tensor>
T rows_from_elsewhere(Ops& ops, const Weights<T>& w, const T& indices) {
  T rows = w.source->rows_from_files(w.token_table, indices);
  return rows.defined() ? rows : ops.take_rows_from_host(w.token_table, indices);
}

/// Rows of the embedding (N, E), which is sharded by tensor parallelism; (n, E) with sequence
/// parallelism.
template <class Ops, class T = typename Ops::Tensor>
T token_rows(Ops& ops, const Weights<T>& w, const T& tokens, const Rows<T>& rows) {
  const OwnIndices<T> own = ops.own_indices(tokens, w.token_table.size(0), spec::Axis::kTensor);
  T x = w.table_on_host ? rows_from_elsewhere(ops, w, own.indices)
                        : ops.take_rows(w.token_table, own.indices);
  ops.clear_(x, own.foreign);
  return sum_of_parts(ops, rows, std::move(x));
}

/// Rows of the position table that are added to x (n, C): (P, C) for every P rows, or (n, C) with
/// sequence parallelism.
template <class Ops, class T = typename Ops::Tensor>
T position_indices(Ops& ops, const Weights<T>& w, const Rows<T>& rows) {
  const std::int64_t first = w.architecture.position_offset;
  if (rows.divided == 0) return ops.plus(rows.positions, first);
  const std::int64_t count = rows.positions.size(0);
  const T all =
      ops.add(ops.zeros({rows.divided / count, count}, Dtype::kInt64), rows.positions);  // (B, P)
  return ops.plus(ops.own_rows(ops.view(all, {-1}), spec::Axis::kTensor), first);
}

/// The input of embed's norm, or the result without a norm.
template <class Ops, class T = typename Ops::Tensor>
T embed_rows(Ops& ops, const Weights<T>& w, const T& tokens, const Rows<T>& rows) {
  T x = token_rows(ops, w, tokens, rows);
  if (w.architecture.embedding_scale != 1) ops.scale_(x, embedding_scale(ops, w));
  if (w.project_in.defined()) x = linear(ops, w.project_in, x);
  if (w.position_table.defined()) {
    const T added = ops.take_rows(w.position_table, position_indices(ops, w, rows));
    ops.add_(ops.view(x, {-1, added.size(0), added.size(1)}), added);
  }
  return x;
}
/// tokens (N,) -> (N, C), or (n, C). N must be a multiple of the positions' P.
template <class Ops, class T = typename Ops::Tensor>
T embed(Ops& ops, const Weights<T>& w, const T& tokens, const Rows<T>& rows) {
  T x = embed_rows(ops, w, tokens, rows);
  if (!w.architecture.embedding_norm) return x;
  return norm<Ops, T>(ops, w.architecture, w.embedding_norm, x, nullptr);
}

/// From d (N, C) or (n, C): adds the gradients of the norm, the positions and the projection.
/// Returns those of the embedding's rows at `tokens`, (N, E) on every rank; undefined if the
/// embedding is frozen.
template <class Ops, class T = typename Ops::Tensor>
T embed_rows_backward(Ops& ops, const Weights<T>& w, const T& tokens, const Rows<T>& rows, T d) {
  if (w.architecture.embedding_norm) {
    const T x = embed_rows(ops, w, tokens, rows);
    NormStatistics<T> statistics;
    (void)norm(ops, w.architecture, w.embedding_norm, x, &statistics);
    d = norm_backward(ops, w.architecture, w.embedding_norm, x, std::move(statistics), d);
  }
  if (w.d_position_table.defined()) {
    const T indices = position_indices(ops, w, rows);
    const T by_position =
        ops.sum_rows(ops.view(d, {-1, indices.size(0), d.size(1)}), ops.dtype(d));  // (P, C)
    ops.add_to_rows_(w.d_position_table, indices, by_position);
  }
  if (w.project_in.defined()) {
    if (!w.project_in.d_weight.defined() && !w.d_token_table.defined()) return T();
    const T x = token_rows(ops, w, tokens, rows);
    d = linear_backward(ops, w.project_in, x, d);
  }
  if (!w.d_token_table.defined()) return T();
  if (w.architecture.embedding_scale != 1) ops.scale_(d, embedding_scale(ops, w));
  return tokens_of_all(ops, rows, d);
}
/// Adds the gradients of the tables and of the norm from d (N, C), or (n, C).
template <class Ops, class T = typename Ops::Tensor>
void embed_backward(Ops& ops, const Weights<T>& w, const T& tokens, const Rows<T>& rows, T d) {
  const T of_table = embed_rows_backward(ops, w, tokens, rows, std::move(d));
  if (of_table.defined()) add_token_rows(ops, w.d_token_table, tokens, of_table);
}

}  // namespace neap::step
