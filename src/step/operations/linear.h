// Matrices of a network, forward and backward, with adapters. Gradients accumulate.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/decoding_sizes.h"
#include "step/operations/fp8_linear.h"
#include "step/operations/operations.h"
#include "step/operations/weights.h"

namespace neap::step {

/// x times the matrix, added to `sum` or plus the bias, without an adapter.
template <class Ops, class T = typename Ops::Tensor>
T multiplied(Ops& ops, const Linear<T>& p, const T& x, T sum, Fp8Copies<T>* copies) {
  if (!sum.defined() && multiplies_in_fp8(ops, p)) {
    Fp8Copies<T> own;
    return fp8_linear(ops, p, x, copies != nullptr ? *copies : own);
  }
  const T w = p.input_major ? p.weight : ops.transpose(p.weight);  // (in, out)
  if (!sum.defined())
    return p.bias.defined() && p.adds_bias ? ops.product_plus(p.bias, x, w) : ops.product(x, w);
  ops.add_product_(sum, x, w, 1);
  return sum;
}

/// x (N, in) -> (N, out). With `sum` (N, out), in decoding only, the product is added there, without the
/// bias. `copies` of x, if several matrices read it; null: none.
template <class Ops, class T = typename Ops::Tensor>
T linear(Ops& ops, const Linear<T>& p, const T& x, T sum = {}, Fp8Copies<T>* copies = nullptr) {
  T y = multiplied(ops, p, x, std::move(sum), copies);
  if (p.has_lora()) {
    const T down = ops.product(x, ops.transpose(p.lora_a));  // (N, rank)
    ops.add_product_(y, down, ops.transpose(p.lora_b), p.lora_scale);
  }
  return y;
}

/// Whether Neap's kernels for few rows multiply so many rows by the matrices, at once.
template <class Ops, class T = typename Ops::Tensor>
bool takes_few_rows(const Ops& ops, std::initializer_list<const Linear<T>*> matrices, Dtype dtype,
                    std::int64_t rows) {
  std::int64_t in = 0, out = 0;
  for (const Linear<T>* p : matrices) {
    if (!p->defined() || p->input_major || p->has_lora() ||
        p->weight.size(0) % kernels::decoding::kTile != 0)
      return false;
    in = p->weight.size(1);
    out += p->weight.size(0);
  }
  return ops.own_few_rows(dtype, rows, in, out);
}
/// The same for x (N, in).
template <class Ops, class T = typename Ops::Tensor>
bool takes_few_rows(const Ops& ops, std::initializer_list<const Linear<T>*> matrices, const T& x) {
  return takes_few_rows<Ops, T>(ops, matrices, ops.dtype(x), x.size(0));
}

/// Whether Neap's kernels multiply x (N, in) by the matrices, of which some have adapters, at once.
template <class Ops, class T = typename Ops::Tensor>
bool takes_adapted_rows(const Ops& ops, std::initializer_list<const Linear<T>*> matrices,
                        const T& x) {
  constexpr std::int64_t kRows = kernels::decoding::kTile;
  std::int64_t out = 0;
  bool adapted = false;
  for (const Linear<T>* p : matrices) {
    if (!p->defined() || p->input_major || p->weight.size(0) % kRows != 0) return false;
    out += p->weight.size(0);
    if (!p->has_lora()) continue;
    const std::int64_t rank = p->lora_a.size(0);
    if (rank % kRows != 0 || rank > kernels::decoding::kMostRank ||
        ops.dtype(p->lora_a) != ops.dtype(x))
      return false;
    out += rank;
    adapted = true;
  }
  return adapted && ops.own_few_rows(ops.dtype(x), x.size(0), x.size(1), out);
}
template <class T>
struct AdaptedRows {
  T y;  // (N, all out + all ranks): products with the matrices, then with the adapters' first ones
  RowAdapters<T> by;
};
/// The products of takes_adapted_rows(), to which the adapters' second matrices are not added yet.
template <class Ops, class T = typename Ops::Tensor>
AdaptedRows<T> adapted_rows(Ops& ops, std::initializer_list<const Linear<T>*> matrices, const T& x,
                            bool biases = true) {
  FewMatrices<T> all;
  RowAdapters<T> by;
  std::size_t i = 0;
  for (const Linear<T>* p : matrices) {
    all.weight[i] = p->weight;
    if (biases && p->adds_bias) all.bias[i] = p->bias;
    by.out[i] = p->weight.size(0);
    if (p->has_lora()) {
      all.weight[i + matrices.size()] = p->lora_a;
      by.up[i] = p->lora_b;
      by.scale[i] = p->lora_scale;
    }
    ++i;
  }
  return {ops.few_rows_products(x, all), by};
}

/// The same as linear(), in decoding. With `bias`, a product of few rows that is added to `sum` has the
/// matrix's bias.
template <class Ops, class T = typename Ops::Tensor>
T decode_linear(Ops& ops, const Linear<T>& p, const T& x, T sum = {}, bool bias = false) {
  if (sum.defined() && takes_adapted_rows(ops, {&p}, x)) {
    const AdaptedRows<T> rows = adapted_rows(ops, {&p}, x, /*biases=*/false);
    ops.add_adapted_rows_(sum, rows.y, rows.by);
    return sum;
  }
  if (!takes_few_rows(ops, {&p}, x)) return linear(ops, p, x, std::move(sum));
  if (!sum.defined()) return ops.few_rows_products(x, {{p.weight}, {p.adds_bias ? p.bias : T()}});
  ops.add_few_rows_(sum, x, p.weight, bias ? p.bias : T());
  return sum;
}

/// d (m, n) += scale a^T b for a (N, m), b (N, n). Needs no temporary if the operations support it.
template <class Ops, class T = typename Ops::Tensor>
void add_outer(Ops& ops, const T& d, const T& a, const T& b, double scale = 1) {
  if (ops.adds_products(ops.dtype(d), ops.dtype(a))) {
    ops.add_product_(d, ops.transpose(a), b, scale);
  } else {
    const T product = ops.product(ops.transpose(a), b);
    if (scale != 1) ops.scale_(product, scale);
    ops.add_(d, product);
  }
}

/// Rows (N, E) of the gradient of an embedding at tokens (N,), which is sharded over ranks. Rows of
/// other ranks are zeroed.
template <class Ops, class T = typename Ops::Tensor>
void add_token_rows(Ops& ops, const T& d_table, const T& tokens, const T& rows) {
  const OwnIndices<T> own = ops.own_indices(tokens, d_table.size(0), spec::Axis::kTensor);
  ops.clear_(rows, own.foreign);
  ops.add_to_rows_(d_table, own.indices, rows);
}

/// Deferred gradients of a matrix: the tensors that they are computed from. The matrix must not
/// move until then.
template <class T>
struct LaterGradients {
  const Linear<T>* matrix = nullptr;
  T x, dy;   // (N, in), (N, out)
  T d_down;  // (N, rank), for an adapter
};
/// The deferred gradients of a block. Gradients of its norms are computed with the input's
/// gradient. `keeps_norms`: they are stored in separate tensors, because the block's gradients have
/// no memory until later.
template <class T>
struct GradientQueue {
  struct OfNorm {
    T to, gradients;  // (C,), or (D,) for heads
  };
  bool keeps_norms = false;
  std::vector<LaterGradients<T>> matrices{};
  std::vector<OfNorm> norms{};
};

/// The norm with the tensors that its backward adds to.
template <class Ops, class T = typename Ops::Tensor>
Norm<T> norm_to_add(Ops& ops, const Norm<T>& p, GradientQueue<T>* later) {
  Norm<T> out = p;
  if (later == nullptr || !later->keeps_norms) return out;
  for (T* gradients : {&out.d_weight, &out.d_bias}) {
    if (!gradients->defined()) continue;
    const T own = ops.zeros({gradients->size(0)}, ops.dtype(*gradients));
    later->norms.push_back({*gradients, own});
    *gradients = own;
  }
  return out;
}

/// Adds the gradients of the matrix and its bias, from x (N, in) and dy (N, out), of which there may be
/// copies.
template <class Ops, class T = typename Ops::Tensor>
void add_matrix_gradients(Ops& ops, const Linear<T>& p, const T& x, const T& dy, Fp8Copies<T>& of_x,
                          Fp8Copies<T>& of_dy) {
  if (p.d_weight.defined()) {
    if (multiplies_in_fp8(ops, p)) {
      add_fp8_outer(ops, p, x, dy, of_x, of_dy);
    } else if (p.input_major) {
      add_outer(ops, p.d_weight, x, dy);
    } else {
      add_outer(ops, p.d_weight, dy, x);
    }
  }
  if (p.d_bias.defined()) ops.add_(p.d_bias, ops.sum_rows(dy, ops.dtype(p.d_bias)));
}

/// Adds the gradients of its adapter; also uses d_down (N, rank), which is not scaled.
template <class Ops, class T = typename Ops::Tensor>
void add_adapter_gradients(Ops& ops, const Linear<T>& p, const T& x, const T& dy, const T& d_down) {
  if (p.d_lora_a.defined()) add_outer(ops, p.d_lora_a, d_down, x, p.lora_scale);
  if (!p.d_lora_b.defined()) return;
  const T down = ops.product(x, ops.transpose(p.lora_a));  // (N, rank)
  add_outer(ops, p.d_lora_b, dy, down, p.lora_scale);
}

/// Computes them in the order of the queue, and frees the inputs of each.
template <class Ops, class T = typename Ops::Tensor>
void add_later_gradients(Ops& ops, GradientQueue<T> queue) {
  for (LaterGradients<T>& each : queue.matrices) {
    {
      Fp8Copies<T> of_x, of_dy;
      add_matrix_gradients(ops, *each.matrix, each.x, each.dy, of_x, of_dy);
    }
    if (each.matrix->has_lora())
      add_adapter_gradients(ops, *each.matrix, each.x, each.dy, each.d_down);
    each = {};
  }
  for (const typename GradientQueue<T>::OfNorm& each : queue.norms)
    ops.add_(each.to, each.gradients);
}

/// `into` plus the gradient of x from dy (N, out), without an adapter's.
template <class Ops, class T = typename Ops::Tensor>
T input_gradient(Ops& ops, const Linear<T>& p, const T& dy, T into, Fp8Copies<T>& of_dy) {
  if (multiplies_in_fp8(ops, p)) {
    T dx = fp8_input_gradient(ops, p, dy, of_dy);
    if (!into.defined()) return dx;
    ops.add_(into, dx);
    return into;
  }
  const T w = p.input_major ? ops.transpose(p.weight) : p.weight;  // (out, in)
  if (!into.defined()) return ops.product(dy, w);
  ops.add_product_(into, dy, w, 1);
  return into;
}

/// From x (N, in) and dy (N, out): adds the gradients of `p`, or defers them in `later`, which
/// keeps x and dy. Returns `into` + dx (N, in), or dx if `into` is undefined. `copies` of x are as in
/// linear().
template <class Ops, class T = typename Ops::Tensor>
T linear_backward(Ops& ops, const Linear<T>& p, const T& x, const T& dy, T into = {},
                  GradientQueue<T>* later = nullptr, Fp8Copies<T>* copies = nullptr) {
  Fp8Copies<T> of_dy;
  if (later == nullptr) {
    Fp8Copies<T> own;
    // One pass over dy makes both.
    if (p.d_weight.defined() && multiplies_in_fp8(ops, p))
      ops.to_fp8(of_dy, dy, Fp8Format::kE5m2, Fp8Sides::kBoth);
    add_matrix_gradients(ops, p, x, dy, copies != nullptr ? *copies : own, of_dy);
    of_dy.columns = T();
  }
  into = input_gradient(ops, p, dy, std::move(into), of_dy);
  of_dy = {};
  T d_down;
  if (p.has_lora()) {
    d_down = ops.product(dy, p.lora_b);  // (N, rank)
    if (later == nullptr) add_adapter_gradients(ops, p, x, dy, d_down);
    ops.add_product_(into, d_down, p.lora_a, p.lora_scale);
  }
  if (later != nullptr && p.trains()) later->matrices.push_back({&p, x, dy, std::move(d_down)});
  return into;
}

}  // namespace neap::step
