// Choices of the tensors that a model's blocks keep, from everything down to their inputs only.
// Each rung takes less memory and more time than the one before.
//
// Tensors are ordered by recomputation time per byte, measured by counting the operations of one
// block. A rung drops the first tensors in all blocks, and the next tensor in the first few blocks.
// It starts with the first blocks because backward needs the last blocks' tensors at once.
//
// Threads   values.
// Cost      tens of passes over one block without data: less than a millisecond.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/counting/tags.h"
#include "spec/model/checkpointing.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

class CheckpointLadder {
 public:
  /// For micro-batches with shape `spans`.
  CheckpointLadder(const ModelRole& role, spec::Dtype dtype, const step::KernelProfile& profile,
                   const step::Spans<step::CountedTensor>& spans);

  /// The last rung: every block keeps only its input.
  [[nodiscard]] std::size_t last() const { return items_.size() * layers_; }
  /// All blocks are equal on rungs 0, step(), 2 step(), ..., last().
  [[nodiscard]] std::size_t step() const { return layers_; }
  [[nodiscard]] spec::Checkpointing at(std::size_t rung) const;

 private:
  using Item = std::vector<spec::SavedTensor>;  // dropped together
  std::size_t layers_;
  std::vector<Item> items_;  // in the order in which they are dropped: least time per byte first
};

}  // namespace neap::plan
