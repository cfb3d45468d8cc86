// The plans of a job whose models stages of a pipeline divide: one for each kind of rank (spec/rank_kinds.h), by choices in
// common (plan/common_choices.h). Their seconds have what stages wait for each other (plan/pipeline_waits.h).
//
// Threads   functions without state.   Failure   as make_plan, of the kind that needs most, with the stage.
// Cost      a plan for each kind and round.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/memory_plan.h"
#include "spec/architecture.h"
#include "spec/rank_kinds.h"
#include "step/pipeline_schedule.h"

namespace neap::plan {

/// What a rank has of a model.
struct ModelBlocks {
  spec::ModelId model = spec::ModelId::kActor;
  std::vector<spec::BlockRange> ranges;  ///< of its chunks
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string to_text() const;  ///< "blocks 0 to 3"
};
/// Of a kind of rank.
struct StagePlan {
  spec::RankKind ranks;
  std::vector<ModelBlocks> models;  ///< of the recipe
  MemoryPlan plan;
  [[nodiscard]] Json blocks_json() const;
};
struct StagePlans {
  std::vector<StagePlan> stages;
  bool alike = true;  ///< each is a stage of every model
  // Of the first model that trains in stages:
  std::int64_t pipe = 1;           ///< so many
  std::int64_t micro_batches = 0;  ///< of a mini-batch
  std::int64_t chunks = 1;         ///< of a stage
  bool zero_bubble = false;        ///< the schedule
  // Of several stages that train:
  std::vector<double> forward{}, backward{};  ///< a micro-batch's on each kind, all chunks together
  std::vector<step::PipelineSpan> spans{};    ///< of a mini-batch
  /// Of a step: its operations, which all ranks end together, and the moves of the one that has most.
  [[nodiscard]] double seconds() const;
  /// The kind that needs most memory.
  [[nodiscard]] std::size_t binding() const;
  /// Of a stage's time, what it waits for others if all compute as long: (p - 1) / (m v); with zero bubble and a forward
  /// and both parts of a backward that take as long, (p - 1) / (3 m).
  [[nodiscard]] double bubble() const;
  [[nodiscard]] std::string name_of(std::size_t kind) const;    ///< "stage 1", "ranks 2 to 3"
  [[nodiscard]] std::string blocks_of(std::size_t kind) const;  ///< of all models
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;
};
[[nodiscard]] Result<StagePlans> plan_stages(const spec::Job& job, const Target& target);

/// As plan_or_least, of all kinds of ranks.
struct StagesOrLeast {
  std::optional<StagePlans> plans{};
  Bytes least{};
};
[[nodiscard]] Result<StagesOrLeast> plan_stages_or_least(const spec::Job& job,
                                                         const Target& target);

}  // namespace neap::plan
