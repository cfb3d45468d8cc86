// The rows of a batch, and which rank has which of their hidden states.
//
// With sequence parallelism (Korthikanti et al. 2022), the N rows of the residual stream, of norms
// and of their gradients are sharded. Rank r has the r-th n = ceil(N / ranks) rows, of which the
// last may be padding. Attention and MLP read the rows of all ranks, and produce partial sums for
// all rows. Padding is finite, is only read by row-wise operations, and has zero gradients.
#pragma once

#include <utility>

#include "step/operations/operations.h"

namespace neap::step {

/// The rows of a batch, with their positions and rotation.
template <class T>
struct Rows {
  Spans<T> spans;
  T positions;                 // (P,) int64: of one sequence; if packed or decoding, of each row
  T cos, sin;                  // (P, d / 2); undefined with learned positions, or if `fused`
  T sliding_cos, sliding_sin;  // the same for sliding layers, if they rotate differently
  std::int64_t divided = 0;    ///< N with sequence parallelism; 0: each rank has all rows
  /// Decoding with Neap's kernels: attention rotates the heads, and products are joined and added
  /// to the residual stream.
  bool fused = false;
};

/// The rows of all ranks, (ranks n, C), from this rank's x (n, C).
template <class Ops, class T = typename Ops::Tensor>
T rows_of_all(Ops& ops, const Rows<T>& rows, const T& x) {
  return rows.divided > 0 ? ops.join_rows(x, spec::Axis::kTensor) : x;
}
/// As rows_of_all(), without padding: (N, C).
template <class Ops, class T = typename Ops::Tensor>
T tokens_of_all(Ops& ops, const Rows<T>& rows, const T& x) {
  if (rows.divided == 0) return x;
  return ops.narrow(ops.join_rows(x, spec::Axis::kTensor), 0, 0, rows.divided);
}
/// This rank's rows (n, C) of x (N, C), which is replicated.
template <class Ops, class T = typename Ops::Tensor>
T own_rows(Ops& ops, const Rows<T>& rows, T x) {
  return rows.divided > 0 ? ops.own_rows(x, spec::Axis::kTensor) : x;
}
/// The sum over ranks of x, (N, C) or (ranks n, C). Returns this rank's rows (n, C), or all rows in
/// x's memory.
template <class Ops, class T = typename Ops::Tensor>
T sum_of_parts(Ops& ops, const Rows<T>& rows, T x) {
  if (rows.divided > 0) return ops.sum_to_rows(std::move(x), spec::Axis::kTensor);
  ops.sum_over_(x, spec::Axis::kTensor);
  return x;
}

}  // namespace neap::step
