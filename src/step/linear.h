// Matrices of a network, forward and backward, with adapters. Gradients are added to what is there.
#pragma once

#include <utility>
#include <vector>

#include "step/operations.h"
#include "step/weights.h"

namespace neap::step {

/// x (N, in) -> (N, out).
template <class Ops, class T = typename Ops::Tensor>
T linear(Ops& ops, const Linear<T>& p, const T& x) {
  const T w = p.input_major ? p.weight : ops.transpose(p.weight);  // (in, out)
  T y = p.bias.defined() && p.adds_bias ? ops.product_plus(p.bias, x, w) : ops.product(x, w);
  if (p.has_lora()) {
    const T down = ops.product(x, ops.transpose(p.lora_a));  // (N, rank)
    ops.add_product_(y, down, ops.transpose(p.lora_b), p.lora_scale);
  }
  return y;
}

/// d (m, n) += a^T b for a (N, m), b (N, n). Without a temporary where the operations can.
template <class Ops, class T = typename Ops::Tensor>
void add_outer(Ops& ops, const T& d, const T& a, const T& b) {
  if (ops.adds_products(ops.dtype(d), ops.dtype(a))) {
    ops.add_product_(d, ops.transpose(a), b, 1);
  } else {
    ops.add_(d, ops.product(ops.transpose(a), b));
  }
}

/// Rows (N, E) of a table's gradient at tokens (N,), of which each rank has some: zeroes those of others.
template <class Ops, class T = typename Ops::Tensor>
void add_token_rows(Ops& ops, const T& d_table, const T& tokens, const T& rows) {
  const OwnIndices<T> own = ops.own_indices(tokens, d_table.size(0), spec::Axis::kTensor);
  ops.clear_(rows, own.foreign);
  ops.add_to_rows_(d_table, own.indices, rows);
}

/// Gradients of a matrix that are computed later: what they are sums of. The matrix stays where it is until then.
template <class T>
struct LaterGradients {
  const Linear<T>* matrix = nullptr;
  T x, dy;   // (N, in), (N, out)
  T d_down;  // (N, rank), of an adapter
};
/// Those of a block. Gradients of its norms are computed with those of its input; `keeps_norms`: where the block's have
/// no memory until then, in tensors of their own.
template <class T>
struct GradientQueue {
  struct OfNorm {
    T to, gradients;  // (C,), or (D,) of heads
  };
  bool keeps_norms = false;
  std::vector<LaterGradients<T>> matrices{};
  std::vector<OfNorm> norms{};
};

/// The norm with the gradients that its backward adds to.
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

/// Those of the matrix and its bias, from x (N, in) and dy (N, out).
template <class Ops, class T = typename Ops::Tensor>
void add_matrix_gradients(Ops& ops, const Linear<T>& p, const T& x, const T& dy) {
  if (p.d_weight.defined()) {
    if (p.input_major) {
      add_outer(ops, p.d_weight, x, dy);
    } else {
      add_outer(ops, p.d_weight, dy, x);
    }
  }
  if (p.d_bias.defined()) ops.add_(p.d_bias, ops.sum_rows(dy, ops.dtype(p.d_bias)));
}

/// Those of its adapter, from d_down (N, rank) besides.
template <class Ops, class T = typename Ops::Tensor>
void add_adapter_gradients(Ops& ops, const Linear<T>& p, const T& x, const T& dy, const T& d_down) {
  if (p.d_lora_a.defined()) add_outer(ops, p.d_lora_a, d_down, x);
  if (!p.d_lora_b.defined()) return;
  const T down = ops.product(x, ops.transpose(p.lora_a));  // (N, rank)
  ops.scale_(down, p.lora_scale);
  add_outer(ops, p.d_lora_b, dy, down);
}

/// In the order of the queue. What each needs is freed behind it.
template <class Ops, class T = typename Ops::Tensor>
void add_later_gradients(Ops& ops, GradientQueue<T> queue) {
  for (LaterGradients<T>& each : queue.matrices) {
    add_matrix_gradients(ops, *each.matrix, each.x, each.dy);
    if (each.matrix->has_lora())
      add_adapter_gradients(ops, *each.matrix, each.x, each.dy, each.d_down);
    each = {};
  }
  for (const typename GradientQueue<T>::OfNorm& each : queue.norms)
    ops.add_(each.to, each.gradients);
}

/// From x (N, in) and dy (N, out): adds the gradients of `p`, or leaves them in `later`, which keeps x and dy as they
/// are. Returns `into` + dx (N, in); `into` undefined: dx.
template <class Ops, class T = typename Ops::Tensor>
T linear_backward(Ops& ops, const Linear<T>& p, const T& x, const T& dy, T into = {},
                  GradientQueue<T>* later = nullptr) {
  if (later == nullptr) add_matrix_gradients(ops, p, x, dy);
  const T w = p.input_major ? ops.transpose(p.weight) : p.weight;  // (out, in)
  if (into.defined()) {
    ops.add_product_(into, dy, w, 1);
  } else {
    into = ops.product(dy, w);
  }
  T d_down;
  if (p.has_lora()) {
    d_down = ops.product(dy, p.lora_b);  // (N, rank)
    ops.scale_(d_down, p.lora_scale);
    if (later == nullptr) add_adapter_gradients(ops, p, x, dy, d_down);
    ops.add_product_(into, d_down, p.lora_a, 1);
  }
  if (later != nullptr && p.trains()) later->matrices.push_back({&p, x, dy, std::move(d_down)});
  return into;
}

}  // namespace neap::step
