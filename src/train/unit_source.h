// The interface of sources of whole units of a rank's shard of a model: own tensors, other ranks'
// ZeRO shards, or other stages.
//
// Threads   one at a time.
// Failure   Error, as of a communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace neap::train {

class UnitSource {
 public:
  virtual ~UnitSource() = default;
  /// Fills every unit's tensor. Later work of the device waits for it. Every rank calls it.
  virtual void gather(const std::vector<at::Tensor>& whole) = 0;
  /// Passes each unit in turn to `take`, in a buffer of the source. The buffer is valid until
  /// `take` has read it on this thread's stream. Every rank calls it.
  using TakeUnit = std::function<void(std::size_t unit, const at::Tensor& whole)>;
  virtual void gather_each(const TakeUnit& take) = 0;
};

}  // namespace neap::train
