// Offloaded gradient shards (ZeRO). The gradients of a unit are loaded for the reduce-scatter after
// a group of micro-batches, and copied back to the host.
//
// Threads   one at a time.
// Failure   Error.
// Cost      two copies of a shard per group; only one for the first group of a mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bridge/streamed_slices.h"
#include "ops/aten_ops.h"
#include "step/units/gradient_slots.h"

namespace neap::train {

class HostedGradients final : public step::GradientSlots<ops::AtenOps>::Hosted {
 public:
  struct Piece {
    std::string slot;   ///< the plan's part that holds its gradients on the device
    at::Tensor memory;  ///< (count,), on the device
    Bytes from;         ///< offset within the slot
  };
  /// Called with a piece's gradients when they are complete on this rank, before they are
  /// offloaded.
  using Complete = std::function<void(std::size_t piece, const at::Tensor& gradients)>;
  /// `slices` must outlive it.
  HostedGradients(bridge::StreamedSlices& slices, std::vector<Piece> pieces, Complete complete);

  void fetch(std::size_t piece) override;
  [[nodiscard]] at::Tensor use(std::size_t piece) override;
  void leave(std::size_t piece, bool complete) override;

 private:
  [[nodiscard]] bridge::StreamedSlices::Range range_of(std::size_t piece) const;
  bridge::StreamedSlices& slices_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> slots_;  // one per piece
  Complete complete_;
};

}  // namespace neap::train
