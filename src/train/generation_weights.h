// What a model of which each rank has a slice generates with: all of its weights, or where ranks divide the model to
// generate (spec::Job::generation_mesh) this rank's part of them.
//
// Parts     whole units pass the memory where they come to in training, one after another; each leaves what this rank
//           has of it. Adapters are whole on every rank, and leave their parts, too.
// Threads   one at a time.   Failure   Error, as of a communicator.
// Cost      gathers the whole model once a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/unit_cuts.h"
#include "spec/job_model.h"
#include "train/sliced_weights.h"

namespace neap::train {

class GenerationWeights {
 public:
  /// One tensor for each unit of the model that generates, and of its adapters where they are parts.
  struct Memory {
    std::vector<at::Tensor> base, adapters;
  };
  /// `rank`: of those that divide `model` to generate. `weights` and `adapters`, the whole ones, outlive this.
  GenerationWeights(SlicedWeights& weights, const std::vector<at::Tensor>& adapters,
                    const spec::JobModel& model, std::int64_t rank, Memory memory);

  /// What passes read.
  [[nodiscard]] const std::vector<at::Tensor>& base() const { return memory_.base; }
  [[nodiscard]] const std::vector<at::Tensor>& adapters() const {
    return adapter_cuts_ ? memory_.adapters : whole_adapters_;
  }
  /// They become those of now. Every rank calls it, in a phase that generates.
  void gather();

 private:
  SlicedWeights& weights_;
  const std::vector<at::Tensor>& whole_adapters_;
  std::int64_t rank_;
  Memory memory_;
  std::optional<model::UnitCuts> cuts_, adapter_cuts_;  // of parts
};

}  // namespace neap::train
