// What lives longer than a phase: the tags of a job, their regions and where they are needed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "spec/model_shape.h"

namespace neap::plan {

/// A model of the job as the planner sees it.
struct ModelRole {
  std::string name;  ///< "actor", "critic", "reference", "reward"
  spec::ModelShape shape;
  spec::Head head = spec::Head::kLanguageModel;
  spec::LoraShape lora;  ///< rank 0: none
  double lora_alpha = 0;
  bool trained = false;
  bool checkpointing = false;
};
/// The shapes behind a job's paths, read once.
struct JobModels {
  std::optional<ModelRole> actor, reference, critic, reward;
};
[[nodiscard]] Result<JobModels> read_models(const spec::Job& job);

/// Bytes of an element in forward and backward: 2 for bfloat16.
[[nodiscard]] std::uint64_t compute_width(const spec::Job& job, const Target& target);
constexpr std::uint64_t kGradientWidth = 4;  ///< gradients add up in float32

/// Names of the job's phases, in the order of a step.
[[nodiscard]] std::vector<std::string> phase_names(const spec::Job& job);
/// Tags with regions and needs; `phases` as phase_names gives them.
[[nodiscard]] std::vector<TagPlan> build_tags(const spec::Job& job, const JobModels& models,
                                              const Target& target,
                                              const std::vector<std::string>& phases);

/// Lays parts, in order, into regions that are large against the granularity.
[[nodiscard]] std::vector<RegionPlan> pack_regions(const std::vector<PartPlan>& parts,
                                                   Bytes granularity);

}  // namespace neap::plan
