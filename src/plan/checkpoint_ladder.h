// What a model's blocks could keep, from everything to their inputs: each rung takes less memory and
// more time than the one before.
//
// Tensors are ordered by seconds of recomputation for each byte that goes, which counting operations
// give on one block. A rung drops the first tensors in all blocks and the next one in the first few:
// backward starts at the last blocks, whose tensors it needs at once.
//
// Threads   values.
// Cost      some tens of passes over one block, without contents: below a millisecond.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/tags.h"
#include "spec/checkpointing.h"
#include "step/counting_ops.h"

namespace neap::plan {

class CheckpointLadder {
 public:
  /// For micro-batches of `spans`.
  CheckpointLadder(const ModelRole& role, spec::Dtype dtype, const step::KernelProfile& profile,
                   const step::Spans<step::CountedTensor>& spans);

  /// The last rung: every block keeps its input only.
  [[nodiscard]] std::size_t last() const { return items_.size() * layers_; }
  /// Rungs on which all blocks are equal: 0, ..., last().
  [[nodiscard]] std::size_t step() const { return layers_; }
  [[nodiscard]] spec::Checkpointing at(std::size_t rung) const;

 private:
  using Item = std::vector<spec::SavedTensor>;  // go together
  std::size_t layers_;
  std::vector<Item> items_;  // the least seconds for each byte first
};

}  // namespace neap::plan
