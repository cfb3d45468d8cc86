// A batch as a phase takes it: in its order and padded, or packed into micro-batches of a budget of
// tokens. Packed ones have no padded tokens.
//
// Threads   one at a time.   Failure   Error.   Cost   copies of the batch in host memory.
#pragma once

#include <cstdint>

#include "spec/context_parallel.h"
#include "spec/recipe.h"
#include "train/sequences.h"

namespace neap::train {

struct ArrangedBatch {
  Sequences sequences;
  // int64: which of the batch's sequences and which of its rows each one is; undefined: as it was.
  at::Tensor order, row_order;

  /// Of a batch's sequences or rows a tensor with one entry each, in the order of the micro-batches.
  [[nodiscard]] at::Tensor arranged(const at::Tensor& by_sequence) const;
  [[nodiscard]] at::Tensor arranged_rows(const at::Tensor& by_row) const;
  /// The reverse of arranged().
  [[nodiscard]] at::Tensor restored(const at::Tensor& by_sequence) const;
};

enum class Use {
  kScoring,   ///< every sequence has its place
  kTraining,  ///< those without tokens in the mask are left out: they have no gradient
};

/// `batch` has the sequences of its rows part by part: of pairs all chosen, then all rejected. So has
/// each micro-batch of the result. The rows are `mini_batches` of equal size, which do not mix. Of packed sequences
/// whose tokens ranks divide, `shard` has its own. Fails for a row over the budget.
[[nodiscard]] ArrangedBatch arrange(Sequences batch, const spec::Batching& batching, Use use,
                                    std::int64_t mini_batches = 1,
                                    const spec::ContextShard& shard = {});

}  // namespace neap::train
