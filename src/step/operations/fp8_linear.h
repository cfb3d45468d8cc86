// A matrix of a block whose products are in fp8, forward and backward.
//
// Memory    Copies in fp8 live while their products run: those of a matrix during one product, those of x
//           as long as its readers. Backward makes those of x again, because the bfloat16 x is there for
//           it anyway, kept or recomputed.
#pragma once

#include <utility>

#include "step/operations/fp8.h"
#include "step/operations/weights.h"

namespace neap::step {

/// Whether products with the matrix are in fp8. Matrices of other sizes stay in the compute type.
template <class Ops, class T = typename Ops::Tensor>
bool multiplies_in_fp8(const Ops& ops, const Linear<T>& p) {
  return p.in_block && ops.fp8() && fits_fp8(p.weight.size(0), p.weight.size(1));
}

/// x as rows of a product.
template <class Ops, class T = typename Ops::Tensor>
Fp8Factor<T> fp8_rows(Ops& ops, const T& x, Fp8Format format, Fp8Copies<T>& copies) {
  if (!copies.rows.defined()) ops.to_fp8(copies, x, format, Fp8Sides::kRows);
  return {copies.rows, copies.scale};
}
/// x transposed.
template <class Ops, class T = typename Ops::Tensor>
Fp8Factor<T> fp8_columns(Ops& ops, const T& x, Fp8Format format, Fp8Copies<T>& copies) {
  if (!copies.columns.defined()) ops.to_fp8(copies, x, format, Fp8Sides::kColumns);
  return {copies.columns, copies.scale};
}
/// The matrix with rows of x's width, or of dy's if `backward`.
template <class Ops, class T = typename Ops::Tensor>
Fp8Factor<T> fp8_matrix(Ops& ops, const Linear<T>& p, bool backward) {
  Fp8Copies<T> copies;
  return backward == p.input_major ? fp8_rows(ops, p.weight, Fp8Format::kE4m3, copies)
                                   : fp8_columns(ops, p.weight, Fp8Format::kE4m3, copies);
}

/// x (N, in) -> (N, out), without an adapter. `copies` of x.
template <class Ops, class T = typename Ops::Tensor>
T fp8_linear(Ops& ops, const Linear<T>& p, const T& x, Fp8Copies<T>& copies) {
  const Fp8Factor<T> rows = fp8_rows(ops, x, Fp8Format::kE4m3, copies);
  return ops.fp8_product(rows, fp8_matrix(ops, p, false), ops.dtype(x), Fp8Sums::kFast,
                         p.adds_bias ? p.bias : T());
}

/// d_weight += the outer product of dy (N, out) and x (N, in).
template <class Ops, class T = typename Ops::Tensor>
void add_fp8_outer(Ops& ops, const Linear<T>& p, const T& x, const T& dy, Fp8Copies<T>& of_x,
                   Fp8Copies<T>& of_dy) {
  Fp8Factor<T> out = fp8_columns(ops, dy, Fp8Format::kE5m2, of_dy);
  Fp8Factor<T> in = fp8_columns(ops, x, Fp8Format::kE4m3, of_x);
  if (p.input_major) std::swap(out, in);
  ops.add_(p.d_weight, ops.fp8_product(out, in, ops.dtype(p.d_weight), Fp8Sums::kExact, T()));
}

/// The gradient of x from dy (N, out), without an adapter's.
template <class Ops, class T = typename Ops::Tensor>
T fp8_input_gradient(Ops& ops, const Linear<T>& p, const T& dy, Fp8Copies<T>& of_dy) {
  const Fp8Factor<T> rows = fp8_rows(ops, dy, Fp8Format::kE5m2, of_dy);
  return ops.fp8_product(rows, fp8_matrix(ops, p, true), ops.dtype(dy), Fp8Sums::kFast, T());
}

}  // namespace neap::step
