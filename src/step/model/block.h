// A transformer block: inference, and forward and backward for training.
//
// N rows of tokens, C hidden, H query heads and K key heads of size D, F intermediate.
#pragma once

#include <algorithm>
#include <utility>

#include "step/model/mlp_half.h"

namespace neap::step {

/// Elements of the widest tensor of one chunk of rows of an MLP that keeps nothing.
constexpr std::int64_t kMlpChunkElements = std::int64_t{1} << 25;

/// x (N, C) -> (N, C). Keeps nothing, and computes the MLP in chunks of rows. `attend(heads)` takes
/// the rotated heads and returns an AttentionContext, of which only `out` is read.
template <class Ops, class Attend, class T = typename Ops::Tensor>
T block_inference(Ops& ops, const spec::Architecture& a, const Block<T>& w, T x,
                  const Rows<T>& rows, const Attend& attend,
                  std::int64_t chunk_elements = kMlpChunkElements) {
  SavedBlock<T> scratch;
  scratch.retention = spec::BlockRetention::all(spec::Retention::kRecompute);
  scratch.input = std::move(x);
  AttentionHalf<Ops> attention(ops, a, w, rows, scratch, Pass::kInference);
  MlpHalf<Ops> mlp(attention);
  T y = attention.forward(attend);
  T read = std::exchange(scratch.input, {});
  if (!a.parallel_residual) read = y;
  const std::int64_t n = y.size(0);
  const std::int64_t sharing = rows.divided > 0 ? ops.ranks(spec::Axis::kTensor) : 1;
  const std::int64_t step =
      std::max<std::int64_t>(1, chunk_elements / (sharing * a.intermediate_size));
  if (n <= step) return mlp.forward(std::move(read), std::move(y));
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t count = std::min(step, n - first);
    const T into = ops.narrow(y, 0, first, count);
    ops.copy_(into, mlp.forward(ops.narrow(read, 0, first, count), into));
  }
  return y;
}

/// x (N, C) -> (N, C). Stores the tensors of its retention in `saved`. Results are bitwise the same
/// for every retention. x is not modified.
template <class Ops, class T = typename Ops::Tensor>
T block_forward(Ops& ops, const spec::Architecture& a, const Block<T>& w, T x, const Rows<T>& rows,
                SavedBlock<T>& saved) {
  saved.input = std::move(x);
  AttentionHalf<Ops> attention(ops, a, w, rows, saved, Pass::kForward);
  T y = attention.forward();
  T read = a.parallel_residual ? saved.input : y;
  return MlpHalf<Ops>(attention).forward(std::move(read), std::move(y));
}

/// Returns the gradient of the block's input from d (N, C), the gradient of its result. Adds the
/// gradients of `w`, or stores what they need in `later`.
template <class Ops, class T = typename Ops::Tensor>
T block_backward(Ops& ops, const spec::Architecture& a, const Block<T>& w, SavedBlock<T> saved, T d,
                 const Rows<T>& rows, GradientQueue<T>* later = nullptr) {
  AttentionHalf<Ops> attention(ops, a, w, rows, saved, Pass::kBackward, later);
  T dx = MlpHalf<Ops>(attention).backward(d);
  if (!a.parallel_residual) {
    d = std::move(dx);
    dx = T();
  }
  T more = attention.backward(d);
  if (dx.defined()) ops.add_(more, dx);
  return more;
}

}  // namespace neap::step
