// Gradients of which this rank keeps a slice that rests in host memory: a unit's come while ranks add up what a group of
// micro-batches has added, and leave again.
//
// Threads   one at a time.
// Failure   Error.
// Cost      two copies of a slice for each group but the first of a mini-batch, which has one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bridge/streamed_slices.h"
#include "ops/aten_ops.h"
#include "step/gradient_slots.h"

namespace neap::train {

class HostedGradients final : public step::GradientSlots<ops::AtenOps>::Hosted {
 public:
  struct Piece {
    std::string slot;   ///< the plan's part that its gradients come to
    at::Tensor memory;  ///< (count,), of that
    Bytes from;         ///< in the slice
  };
  /// With a piece's gradients, to which nothing more of this rank is added, before they leave.
  using Complete = std::function<void(std::size_t piece, const at::Tensor& gradients)>;
  /// `slices` outlives it.
  HostedGradients(bridge::StreamedSlices& slices, std::vector<Piece> pieces, Complete complete);

  void fetch(std::size_t piece) override;
  [[nodiscard]] at::Tensor use(std::size_t piece) override;
  void leave(std::size_t piece, bool complete) override;

 private:
  [[nodiscard]] bridge::StreamedSlices::Range range_of(std::size_t piece) const;
  bridge::StreamedSlices& slices_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> slots_;  // one a piece
  Complete complete_;
};

}  // namespace neap::train
