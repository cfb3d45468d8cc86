// Transfers of hidden states between pipeline stages, and of their gradients.
//
// Tensor-parallel ranks have the same hidden states. Each sends its share of the rows to the rank
// with the same shard in the next stage, and that stage all-gathers them (Megatron's
// scatter-gather). So the network between machines carries them once. With sequence parallelism,
// each rank sends the rows that it has.
#pragma once

#include <cstdint>

#include "step/operations/operations.h"
#include "step/operations/weights.h"

namespace neap::step {

/// Sends x (N, C), or a rank's rows (n, C) with sequence parallelism.
template <class Ops, class T = typename Ops::Tensor>
void send_hidden(Ops& ops, const Weights<T>& w, const T& x, std::int64_t stage) {
  ops.send(w.architecture.tensor.divides_rows ? x : ops.own_rows(x, spec::Axis::kTensor), stage);
}
/// Receives this rank's share of N rows: (n, C).
template <class Ops, class T = typename Ops::Tensor>
T receive_hidden(Ops& ops, const Weights<T>& w, std::int64_t rows, std::int64_t stage) {
  const spec::Architecture& a = w.architecture;
  const T x = ops.empty({spec::rows_of_each(rows, a.tensor.ranks), a.hidden_size},
                        ops.dtype(any_weight(w)));
  ops.receive_(x, stage);
  return x;
}
/// The hidden states as a pass reads them: (N, C), or (n, C) with sequence parallelism.
template <class Ops, class T = typename Ops::Tensor>
T joined_hidden(Ops& ops, const Weights<T>& w, T x, std::int64_t rows) {
  const spec::TensorShard& shard = w.architecture.tensor;
  if (shard.ranks == 1 || shard.divides_rows) return x;
  return ops.narrow(ops.join_rows(x, spec::Axis::kTensor), 0, 0, rows);
}

}  // namespace neap::step
