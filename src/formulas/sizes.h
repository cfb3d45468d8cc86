// Values of the formulas' letters for a job, and the bytes that its plan counts.
//
// Threads   stateless functions.
//
// Failure   the Status of the job's models or of its plan.
//
// Cost      a plan without a capacity limit for each data-parallel size of the models: below a
//           second for a 7B model.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formulas/terms.h"
#include "plan/counting/tags.h"
#include "plan/results/memory_plan.h"

namespace neap::formulas {

/// Numbers of elements by part of the model.
struct CountedParameters {
  double attention = 0, mlp = 0, norms = 0;  ///< of all layers
  double embedding = 0;                      ///< with positions and later parts of the embedding
  double head = 0;  ///< with the final norm; a tied matrix counts as embedding
  [[nodiscard]] double layers() const { return attention + mlp + norms; }
  [[nodiscard]] double sum() const { return layers() + embedding + head; }
};
[[nodiscard]] CountedParameters count_parameters(const spec::Architecture& shape, spec::Head head);

/// Activations of a trained model.
struct CountedActivations {
  double none = 0, selective = 0, full = 0;  ///< bytes that the first layer stores, by mode
  double planned = 0;                        ///< bytes that all layers store according to the plan
};

struct ModelSizes {
  plan::ModelRole role;
  Decoder letters;
  CountedParameters parameters;
  double adapter = 0;  ///< elements of LoRA adapters
  [[nodiscard]] double trained() const {
    return !role.trained ? 0 : role.lora.rank > 0 ? adapter : parameters.sum();
  }
  // For a trained model:
  MicroBatch batch;
  double micro_batches = 1;  ///< per optimizer step
  Recompute recompute = Recompute::kNone;
  spec::Dtype gradients = spec::Dtype::kFloat32;
  double master = 0;  ///< bytes of the master weights
  CountedActivations activations;
  bool keeps_gate_activation = false;  ///< mode "none" also keeps act(gate)
  std::optional<spec::PhaseId> phase;  ///< the phase that runs forward and backward
  double transient = 0;                ///< planned temporaries of that phase
};

struct JobSizes {
  std::string task;
  double width = 2;  ///< bytes per weight
  std::int64_t ranks = 1;
  std::vector<ModelSizes> models;
  // Size of the KV cache, of sequences or of pages; no sequences: the job generates nothing.
  double cached_sequences = 0, cached_tokens = 0;
  bool cached_in_pages = false;
  plan::MemoryPlan plan;  ///< of one rank with whole models, without a capacity limit

  /// The first trained model; null if none is trained.
  [[nodiscard]] const ModelSizes* trained() const;
  /// Bytes of a tag; nullopt if the plan lacks it.
  [[nodiscard]] std::optional<double> tag(spec::TagId id) const;
};

/// `target`: the device. Its capacity is ignored.
[[nodiscard]] Result<JobSizes> read_sizes(const spec::Job& job, plan::Target target);

}  // namespace neap::formulas
