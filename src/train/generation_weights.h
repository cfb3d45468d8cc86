// Prepares rollout weights for a model whose ranks have ZeRO shards, stages or another
// tensor-parallel size in training. They are all of the model's weights, or this rank's shard with
// spec::Job::generation_mesh.
//
// Parts     units are gathered one after another into a buffer of their source. From there, the
//           training tensor-parallel group exchanges the elements that rollouts need.
// Threads   one at a time.
// Failure   Error, as of a communicator.
// Cost      each call gathers this rank's training shard and receives missing elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "train/part_exchange.h"
#include "train/unit_source.h"

namespace neap::train {

class GenerationWeights {
 public:
  /// Units of one layout.
  struct Units {
    UnitSource* from = nullptr;  ///< must outlive this
    std::vector<at::Tensor> to;
    std::unique_ptr<PartExchange> parts;  ///< null: training and rollouts use the same shards
  };
  /// Units of the base, and of adapters if rollouts do not read the trained ones.
  explicit GenerationWeights(std::vector<Units> units) : units_(std::move(units)) {}

  /// Updates the rollout weights. Every rank calls it, in a phase that generates.
  void gather();

 private:
  std::vector<Units> units_;
};

/// Units that are on the device. They must outlive it.
class ResidentUnits final : public UnitSource {
 public:
  explicit ResidentUnits(const std::vector<at::Tensor>& units) : units_(units) {}
  void gather(const std::vector<at::Tensor>& whole) override;
  void gather_each(const TakeUnit& take) override;

 private:
  const std::vector<at::Tensor>& units_;
};

}  // namespace neap::train
