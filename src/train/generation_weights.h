// What a model generates with whose ranks have slices or stages of it in training: all of its weights, or where ranks
// divide it to generate (spec::Job::generation_mesh) this rank's part of them.
//
// Parts     whole units come one after another to a place of their source; each leaves what this rank has of it.
// Threads   one at a time.   Failure   Error, as of a communicator.
// Cost      gathers the whole model once a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/unit_cuts.h"
#include "spec/job_model.h"
#include "train/unit_source.h"

namespace neap::train {

class GenerationWeights {
 public:
  /// Units of one layout: where they come from, and where they go.
  struct Units {
    UnitSource* from = nullptr;  ///< outlives this
    std::vector<at::Tensor> to;
  };
  /// `rank`: of those that divide `model` to generate. `adapters`: from null where passes read the whole ones.
  GenerationWeights(const spec::JobModel& model, std::int64_t rank, Units base, Units adapters);

  /// They become those of now. Every rank calls it, in a phase that generates.
  void gather();

 private:
  void gather(const Units& units, const std::optional<model::UnitCuts>& cuts);

  std::int64_t rank_;
  Units base_, adapters_;
  std::optional<model::UnitCuts> cuts_, adapter_cuts_;  // of parts
};

/// Units that a rank has whole, which outlive it.
class WholeUnits final : public UnitSource {
 public:
  explicit WholeUnits(const std::vector<at::Tensor>& units) : units_(units) {}
  void gather(const std::vector<at::Tensor>& whole) override;
  void gather_each(const TakeUnit& take) override;

 private:
  const std::vector<at::Tensor>& units_;
};

}  // namespace neap::train
