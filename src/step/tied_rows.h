// Gradients of a tied table's rows, kept until every head of a mini-batch has added its own.
//
// A head and an embedding of one table add to the same sums. In every mini-batch all heads come first, then
// all embeddings, both by ascending micro-batch: the sums have the same bits for every size of groups.
//
// Threads   one at a time.
// Cost      host memory of (N, E) and (N,) int64 for each micro-batch, and two copies of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "step/linear.h"
#include "step/packing.h"

namespace neap::step {

/// Of a model that trains a table which is its embedding and its head.
template <class T>
[[nodiscard]] bool trains_tied_table(const Weights<T>& w) {
  return w.architecture.ties_table(w.head) && w.d_token_table.defined();
}

template <class T>
class TiedRows {
 public:
  /// Gradients (N, E) of the rows at tokens (N,).
  template <class Ops>
  void keep(Ops& ops, const MicroBatch& micro, const T& tokens, const T& gradients) {
    kept_.push_back({micro, ops.to_pinned(tokens), ops.to_pinned(gradients)});
  }
  /// Adds those of a micro-batch to the table's (V, E).
  template <class Ops>
  void add(Ops& ops, const T& table, const MicroBatch& micro) {
    const Rows& rows = of(micro);
    add_token_rows(ops, table, ops.from_pinned(rows.tokens), ops.from_pinned(rows.gradients));
  }

 private:
  struct Rows {
    MicroBatch micro;
    T tokens, gradients;
  };
  // A plan leaves out groups that are alike: then those of a micro-batch of as many rows.
  [[nodiscard]] const Rows& of(const MicroBatch& micro) const {
    const auto find = [&](std::int64_t MicroBatch::*what) {
      return std::find_if(kept_.begin(), kept_.end(), [&](const Rows& rows) {
        return rows.micro.*what == micro.*what && rows.micro.aside == micro.aside;
      });
    };
    const auto exact = find(&MicroBatch::first);
    return exact != kept_.end() ? *exact : *find(&MicroBatch::count);
  }
  std::vector<Rows> kept_;
};

}  // namespace neap::step
