// The optimizer of a model in the memory of the plan: which states and gradients are this rank's, and
// where they are stored. If states are offloaded, it updates them in parts.
//
// Ranks     gather_weights() is called by every rank.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/transformer.h"
#include "spec/job/placement.h"
#include "step/units/update_parts.h"
#include "train/optimizer.h"
#include "train/rank_model.h"
#include "train/sharded_gradients.h"
#include "train/unit_store.h"

namespace neap::train {

class ModelOptimizer {
 public:
  /// `units`, the trained ones, must outlive it.
  ModelOptimizer(const RankModel& model, UnitStore& units);
  ModelOptimizer(const ModelOptimizer&) = delete;

  [[nodiscard]] Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] const spec::StatePlacement& placement() const { return placement_; }
  [[nodiscard]] const ModelPart& part() const { return units_.part(); }
  /// The tensors where backward adds gradients, one per unit.
  [[nodiscard]] const std::vector<at::Tensor>& gradients() const { return gradients_; }
  /// Receives the gradients of passes of `model`, which must outlive it.
  void receive_from(ops::Transformer& model);
  /// Whether states are offloaded, so that they can be used without holding their tag.
  [[nodiscard]] bool offloaded() const { return states_at_ != nullptr; }
  /// This rank's part of a state; undefined if it has none.
  [[nodiscard]] at::Tensor own_part(const spec::WholeState& state) const;

  /// Sets weights and states of the units before the first step. `fill` fills whole units of this
  /// rank's part of the model; empty: the weights have been set.
  void start(const UnitFill& fill);
  /// ModelWorker's.
  void for_each_part(const std::function<void(const OptimizerUnit&)>& visit);
  void gather_weights();

 private:
  [[nodiscard]] std::vector<OptimizerUnit> make_units();
  /// This rank's pieces of the units.
  void make_pieces(const std::vector<OptimizerUnit>& units);
  /// The parts of updates of offloaded states.
  [[nodiscard]] step::UpdateParts update_parts(const std::vector<OptimizerUnit>& units) const;
  /// Prefetch buffers of offloaded states, as (bytes,).
  [[nodiscard]] std::vector<at::Tensor> update_slots();
  /// The storage of a tensor of a part.
  [[nodiscard]] bridge::Resting resting(const step::UpdatePart& part, step::StreamedKind kind);
  /// All-gathers offloaded units through the prefetch buffers.
  void gather_offloaded();
  void start_sharded_masters(const UnitFill& fill);

  const RankModel& rank_;
  spec::StatePlacement placement_;
  UnitStore& units_;
  bridge::StreamedStates* states_at_;           // null: states are on the device
  std::optional<ShardedGradients> sharded_;     // only if gradients are sharded
  std::vector<at::Tensor> states_, gradients_;  // per part of the tag, (bytes,); per unit
  std::vector<OptimizerUnit> pieces_;           // this rank's, with states
  std::optional<step::UpdateParts> parts_;      // of offloaded states
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace neap::train
