// Where units of a rank's part of a model come from, whole: its own tensors, other ranks' slices or other stages.
//
// Threads   one at a time.   Failure   Error, as of a communicator.
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
  /// Every unit comes to its tensor. What the device is given next begins after that. Every rank calls it.
  virtual void gather(const std::vector<at::Tensor>& whole) = 0;
  /// Each unit in turn comes to a place of the source's, and is there until `take` has read it on this thread's
  /// stream. Every rank calls it.
  using TakeUnit = std::function<void(std::size_t unit, const at::Tensor& whole)>;
  virtual void gather_each(const TakeUnit& take) = 0;
};

}  // namespace neap::train
