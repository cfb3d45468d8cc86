// Arranges a batch for a phase: in its order with padding, or packed into micro-batches without
// padding, bounded by tokens.
//
// Threads   one at a time.
// Failure   Error.
// Cost      copies of the batch in host memory.
#pragma once

#include <cstdint>

#include "spec/ranks/context_parallel.h"
#include "spec/recipe/recipe.h"
#include "train/sequences.h"

namespace neap::train {

struct ArrangedBatch {
  Sequences sequences;
  // int64: the original positions of sequences and of rows; undefined: unchanged.
  at::Tensor order, row_order;

  /// Reorders a tensor with one entry per sequence or row of the batch to the order of the
  /// micro-batches.
  [[nodiscard]] at::Tensor arranged(const at::Tensor& by_sequence) const;
  [[nodiscard]] at::Tensor arranged_rows(const at::Tensor& by_row) const;
  /// The inverse of arranged().
  [[nodiscard]] at::Tensor restored(const at::Tensor& by_sequence) const;
};

enum class Use {
  kScoring,   ///< keeps every sequence
  kTraining,  ///< drops sequences without tokens in the mask, because they have no gradient
};

/// `batch` and each resulting micro-batch store rows part by part: for pairs, all chosen, then all
/// rejected. Rows are in `mini_batches` of equal size, and stay in their mini-batch. With context
/// parallelism, `shard` selects this rank's tokens of packed sequences. Fails for a row over the
/// budget.
[[nodiscard]] ArrangedBatch arrange(Sequences batch, const spec::Batching& batching, Use use,
                                    std::int64_t mini_batches = 1,
                                    const spec::ContextShard& shard = {});

}  // namespace neap::train
