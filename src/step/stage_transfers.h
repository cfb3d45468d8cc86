// Hidden states between stages of a pipeline, and their gradients.
//
// Ranks that divide a model by tensor have the same ones. Each sends its part of the rows to the rank of the next stage
// that has its part of the model, and that stage joins them (Megatron's scatter and gather): a network between machines
// carries them once. Where ranks divide the rows anyway, each sends what it has.
#pragma once

#include <cstdint>

#include "step/operations.h"
#include "step/weights.h"

namespace neap::step {

/// x (N, C), or a rank's rows of it (n, C) where ranks divide them.
template <class Ops, class T = typename Ops::Tensor>
void send_hidden(Ops& ops, const Weights<T>& w, const T& x, std::int64_t stage) {
  ops.send(w.architecture.tensor.divides_rows ? x : ops.own_rows(x, spec::Axis::kTensor), stage);
}
/// Of N rows those that this rank gets: (n, C).
template <class Ops, class T = typename Ops::Tensor>
T receive_hidden(Ops& ops, const Weights<T>& w, std::int64_t rows, std::int64_t stage) {
  const spec::Architecture& a = w.architecture;
  const T x = ops.empty({spec::rows_of_each(rows, a.tensor.ranks), a.hidden_size},
                        ops.dtype(any_weight(w)));
  ops.receive_(x, stage);
  return x;
}
/// What a pass reads of them: (N, C), or (n, C) where ranks divide the rows.
template <class Ops, class T = typename Ops::Tensor>
T joined_hidden(Ops& ops, const Weights<T>& w, T x, std::int64_t rows) {
  const spec::TensorShard& shard = w.architecture.tensor;
  if (shard.ranks == 1 || shard.divides_rows) return x;
  return ops.narrow(ops.join_rows(x, spec::Axis::kTensor), 0, 0, rows);
}

}  // namespace neap::step
