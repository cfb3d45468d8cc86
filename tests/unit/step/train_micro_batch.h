// A group of one micro-batch, whose numbers are read.
#pragma once

#include <vector>

#include "step/training/training.h"

namespace neap::step {

/// step::train_group of rows [first, first + count), or pairs.
template <class Ops, class Objective, class T = typename Ops::Tensor>
LossNumbers train_micro_batch(Ops& ops, const Weights<T>& w, const Experience<T>& e,
                              std::int64_t first, std::int64_t count, const Objective& objective,
                              const spec::Checkpointing& keep) {
  const MicroBatch micro{first, count};
  const std::vector<KeptNumbers<T>> kept =
      train_group(ops, w, e, Group(&micro, 1), objective, keep);
  ops.wait_for_device();
  return kept.front().read(ops);
}

}  // namespace neap::step
