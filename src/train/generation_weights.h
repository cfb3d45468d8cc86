// What a model generates with whose ranks have slices, stages or other parts of it in training: all of its weights, or
// where ranks divide it otherwise to generate (spec::Job::generation_mesh) this rank's part of them.
//
// Parts     units come one after another to a place of their source; from there the ranks that divide the model in
//           training give each other what they generate with.
// Threads   one at a time.   Failure   Error, as of a communicator.
// Cost      gathers what this rank trains of the model once a call, and what it lacks.
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
    UnitSource* from = nullptr;  ///< outlives this
    std::vector<at::Tensor> to;
    std::unique_ptr<PartExchange> parts;  ///< null: both are divided alike
  };
  /// The base's, and those of adapters where passes do not read the ones that train.
  explicit GenerationWeights(std::vector<Units> units) : units_(std::move(units)) {}

  /// They become those of now. Every rank calls it, in a phase that generates.
  void gather();

 private:
  std::vector<Units> units_;
};

/// Units that a rank has, which outlive it.
class ResidentUnits final : public UnitSource {
 public:
  explicit ResidentUnits(const std::vector<at::Tensor>& units) : units_(units) {}
  void gather(const std::vector<at::Tensor>& whole) override;
  void gather_each(const TakeUnit& take) override;

 private:
  const std::vector<at::Tensor>& units_;
};

}  // namespace neap::train
