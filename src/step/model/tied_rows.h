// Gradients of a tied embedding's rows, which are kept until every head of a mini-batch has added
// its own.
//
// Head and embedding add to the same gradient. In every mini-batch all heads come first, then all
// embeddings, each in ascending order of micro-batches. So results are bitwise the same for every
// group size.
//
// Threads   one at a time.
// Cost      host memory of (N, E) and (N,) int64 per micro-batch, copied twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "step/model/packing.h"
#include "step/operations/linear.h"

namespace neap::step {

/// Whether the model trains a tied embedding.
template <class T>
[[nodiscard]] bool trains_tied_table(const Weights<T>& w) {
  return w.architecture.ties_table(w.head) && w.d_token_table.defined();
}

template <class T>
class TiedRows {
 public:
  /// Keeps the gradients (N, E) of the rows at tokens (N,).
  template <class Ops>
  void keep(Ops& ops, const MicroBatch& micro, const T& tokens, const T& gradients) {
    kept_.push_back({micro, ops.to_pinned(tokens), ops.to_pinned(gradients)});
  }
  /// Adds those of a micro-batch to the embedding's gradient (V, E).
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
  // A plan skips equal groups, so this may be a micro-batch with the same number of rows.
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
