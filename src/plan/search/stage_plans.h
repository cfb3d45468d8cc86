// The plans of a job with pipeline stages: one for each kind of rank (spec/ranks/rank_kinds.h), with
// agreed settings (plan/search/common_choices.h). Their times include waits for other stages
// (plan/counting/pipeline_waits.h).
//
// Threads   stateless functions.
// Failure   as make_plan, for the kind that needs the most, naming the stage.
// Cost      a plan per kind and round.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/results/memory_plan.h"
#include "spec/model/architecture.h"
#include "spec/ranks/rank_kinds.h"
#include "step/pipeline/pipeline_schedule.h"

namespace neap::plan {

/// The blocks of a model that a rank has.
struct ModelBlocks {
  spec::ModelId model = spec::ModelId::kActor;
  std::vector<spec::BlockRange> ranges;  ///< of its chunks
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string to_text() const;  ///< "blocks 0 to 3"
};
/// The plan of a kind of rank.
struct StagePlan {
  spec::RankKind ranks;
  std::vector<ModelBlocks> models;  ///< of the recipe
  MemoryPlan plan;
  [[nodiscard]] Json blocks_json() const;
};
struct StagePlans {
  std::vector<StagePlan> stages;
  bool alike = true;  ///< each kind is one stage of every model
  // For the first model that trains in stages:
  std::int64_t pipe = 1;           ///< number of stages
  std::int64_t micro_batches = 0;  ///< per mini-batch
  std::int64_t chunks = 1;         ///< per stage
  bool zero_bubble = false;        ///< uses the zero-bubble schedule
  // If several stages train:
  std::vector<double> forward{}, backward{};  ///< of a micro-batch on each kind, over all chunks
  std::vector<step::PipelineSpan> spans{};    ///< of a mini-batch
  /// Per step: the operations, which all ranks end together, plus the largest time for moves.
  [[nodiscard]] double seconds() const;
  /// The kind that needs the most memory.
  [[nodiscard]] std::size_t binding() const;
  /// The fraction of a stage's time spent waiting if all stages take equally long: (p - 1) / (m v).
  /// With zero bubble and equal times for forward and both parts of backward it is (p - 1) / (3 m).
  [[nodiscard]] double bubble() const;
  [[nodiscard]] std::string name_of(std::size_t kind) const;    ///< "stage 1", "ranks 2 to 3"
  [[nodiscard]] std::string blocks_of(std::size_t kind) const;  ///< for all models
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;
};
[[nodiscard]] Result<StagePlans> plan_stages(const spec::Job& job, const Target& target);

/// As plan_or_least, for all kinds of rank.
struct StagesOrLeast {
  std::optional<StagePlans> plans{};
  Bytes least{};
};
[[nodiscard]] Result<StagesOrLeast> plan_stages_or_least(const spec::Job& job,
                                                         const Target& target);

}  // namespace neap::plan
