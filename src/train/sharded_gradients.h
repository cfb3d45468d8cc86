// Sharded gradients of a model (ZeRO-2 and 3): backward adds to memory of a few units, from which
// they are reduced to this rank's shard (step/units/gradient_slots.h). The shard may be offloaded:
// gradients of a unit are loaded for the reduce-scatter after a group of micro-batches, and copied
// back to the host.
//
// Threads   one at a time.
// Failure   Error.
// Cost      if offloaded, two copies of a shard per group; only one for the first group of a
//           mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/transformer.h"
#include "spec/job/placement.h"
#include "step/units/gradient_slots.h"
#include "train/optimizer.h"
#include "train/rank_model.h"

namespace neap::train {

class ShardedGradients final : private step::GradientSlots<ops::AtenOps>::Hosted {
 public:
  /// `placement` must outlive it.
  ShardedGradients(const RankModel& model, const spec::StatePlacement& placement);

  /// The tensor where backward adds a unit's gradients; several units share it.
  [[nodiscard]] at::Tensor unit(std::size_t unit) const;
  /// This rank's shard of all units; undefined if it is offloaded.
  [[nodiscard]] at::Tensor shard() const;
  /// The offloaded shard; null: it is on the device.
  [[nodiscard]] bridge::StreamedSlices* offloaded() const { return offloaded_; }
  /// Reduces the gradients of passes of `model` to these pieces. Both must outlive it.
  void receive_from(ops::Transformer& model, const std::vector<OptimizerUnit>& pieces);

 private:
  [[nodiscard]] at::Tensor slot(std::string_view name) const;
  // For an offloaded shard:
  void fetch(std::size_t piece) override;
  [[nodiscard]] at::Tensor use(std::size_t piece) override;
  void leave(std::size_t piece, bool complete) override;
  struct Offloaded {
    std::size_t slot = 0;  // of the shard's slots
    at::Tensor memory;     // (count,), on the device
    bridge::StreamedSlices::Range range;
  };
  void offload();

  const RankModel& rank_;
  const spec::StatePlacement& placement_;
  bridge::StreamedSlices* offloaded_;
  ops::AtenOps ops_;
  const std::vector<OptimizerUnit>* pieces_ = nullptr;
  ops::Transformer* model_ = nullptr;
  std::vector<Offloaded> parts_;  // one per piece
  std::optional<step::GradientSlots<ops::AtenOps>> slots_;
};

}  // namespace neap::train
