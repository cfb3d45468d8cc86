// What the formulas' letters are for a job, and what its plan counts.
//
// Threads   functions without state.
// Failure   Status of the job's models or of its plan.
// Cost      a plan without a ceiling, for each way to share batches that the models have: below a second for a 7B model.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formulas/terms.h"
#include "plan/memory_plan.h"
#include "plan/tags.h"

namespace neap::formulas {

/// Elements by what they belong to.
struct CountedParameters {
  double attention = 0, mlp = 0, norms = 0;  ///< of all layers
  double embedding = 0;                      ///< with positions and what stands behind the table
  double head = 0;  ///< with the final norm; a tied table is the embedding's
  [[nodiscard]] double layers() const { return attention + mlp + norms; }
  [[nodiscard]] double sum() const { return layers() + embedding + head; }
};
[[nodiscard]] CountedParameters count_parameters(const spec::Architecture& shape, spec::Head head);

/// Of a trained model.
struct CountedActivations {
  double none = 0, selective = 0, full = 0;  ///< bytes that the first block keeps, by mode
  double planned = 0;                        ///< bytes that all blocks keep as the plan says
};

struct ModelSizes {
  plan::ModelRole role;
  Decoder letters;
  CountedParameters parameters;
  double adapter = 0;  ///< elements of LoRA adapters
  [[nodiscard]] double trained() const {
    return !role.trained ? 0 : role.lora.rank > 0 ? adapter : parameters.sum();
  }
  // Of a trained model:
  MicroBatch batch;
  double micro_batches = 1;  ///< of an optimizer step
  Recompute recompute = Recompute::kNone;
  spec::Dtype gradients = spec::Dtype::kFloat32;
  double master = 0;  ///< bytes of the weights' copies that updates are added to
  CountedActivations activations;
  std::optional<spec::PhaseId> phase;  ///< the one that runs forward and backward
  double transient = 0;                ///< its temporaries, as planned
};

struct JobSizes {
  std::string task;
  double width = 2;  ///< bytes of a weight
  std::int64_t ranks = 1;
  std::vector<ModelSizes> models;
  // Of the KV cache; no sequences: the job generates nothing.
  double cached_sequences = 0, cached_tokens = 0;
  plan::MemoryPlan plan;  ///< of one rank with whole models, without a ceiling

  /// The first model that trains; null: none does.
  [[nodiscard]] const ModelSizes* trained() const;
  /// Bytes of a tag; nullopt: the plan has no such tag.
  [[nodiscard]] std::optional<double> tag(spec::TagId id) const;
};

/// `target`: the device; its capacity does not count.
[[nodiscard]] Result<JobSizes> read_sizes(const spec::Job& job, plan::Target target);

}  // namespace neap::formulas
