// The rows of a batch, and who has which of their hidden states.
//
// Where ranks divide the rows (sequence parallelism, Korthikanti et al. 2022), each has as many of the N rows of
// the residual stream, of norms and of their gradients: rank r has the r-th n = ceil(N / ranks), of which the last
// may be padding. Attention and MLP read the rows of all ranks and leave partial sums of all rows. Padding is
// finite, nothing reads it but what is computed row by row, and its gradients are zero.
#pragma once

#include <utility>

#include "step/operations.h"

namespace neap::step {

/// The rows of a batch, their places and rotation.
template <class T>
struct Rows {
  Spans<T> spans;
  T positions;                 // (P,) int64: of one sequence, packed or decoding of each row
  T cos, sin;                  // (P, d / 2); undefined with learned positions
  T sliding_cos, sliding_sin;  // as those, where layers that slide turn differently
  std::int64_t divided = 0;    ///< N, where ranks divide the rows; 0: each rank has all
};

/// What the rows of all ranks are, (ranks n, C), from this rank's x (n, C).
template <class Ops, class T = typename Ops::Tensor>
T rows_of_all(Ops& ops, const Rows<T>& rows, const T& x) {
  return rows.divided > 0 ? ops.join_rows(x, spec::Axis::kTensor) : x;
}
/// The same without padding: (N, C).
template <class Ops, class T = typename Ops::Tensor>
T tokens_of_all(Ops& ops, const Rows<T>& rows, const T& x) {
  if (rows.divided == 0) return x;
  return ops.narrow(ops.join_rows(x, spec::Axis::kTensor), 0, 0, rows.divided);
}
/// This rank's rows (n, C) of x (N, C), which all ranks have.
template <class Ops, class T = typename Ops::Tensor>
T own_rows(Ops& ops, const Rows<T>& rows, T x) {
  return rows.divided > 0 ? ops.own_rows(x, spec::Axis::kTensor) : x;
}
/// The sums of the ranks' x, (N, C) or (ranks n, C): this rank's rows (n, C), or all in x's memory.
template <class Ops, class T = typename Ops::Tensor>
T sum_of_parts(Ops& ops, const Rows<T>& rows, T x) {
  if (rows.divided > 0) return ops.sum_to_rows(std::move(x), spec::Axis::kTensor);
  ops.sum_over_(x, spec::Axis::kTensor);
  return x;
}

}  // namespace neap::step
