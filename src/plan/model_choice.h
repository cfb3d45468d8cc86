// What a plan chose of a model, and choices that a plan has to take as they are.
//
// Threads   values and functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/memory_plan.h"
#include "spec/checkpointing.h"
#include "spec/recipe.h"

namespace neap::plan {

struct ModelChoice {
  spec::ModelId model = spec::ModelId::kActor;
  spec::UpdateMode update = spec::UpdateMode::kJoined;
  // Of its weights, as spec::ModelModes says it.
  bool streams_weights = false, streams_tables = false, inputs_on_host = false,
       gradients_on_host = false, blocks_on_disk = false;
  std::optional<spec::Checkpointing> retention{};  ///< nullopt: any
  /// Micro-batches that go through a block before the next one is used; nullopt: any.
  std::optional<std::int64_t> together{};
  friend bool operator==(const ModelChoice&, const ModelChoice&) = default;
};
/// Those of its weights, each of which takes less of the device where it is true.
inline constexpr std::array kWeightChoices = {
    &ModelChoice::streams_weights, &ModelChoice::streams_tables, &ModelChoice::inputs_on_host,
    &ModelChoice::gradients_on_host, &ModelChoice::blocks_on_disk};

/// Choices that a plan takes as they are, of some models and of the job.
struct FixedChoices {
  std::vector<ModelChoice> models{};
  std::optional<VariantChoice> variant{};  ///< nullopt: any
  [[nodiscard]] bool empty() const { return models.empty() && !variant; }
  friend bool operator==(const FixedChoices&, const FixedChoices&) = default;
};

/// What a choice has besides updates and weights.
struct ChoiceParts {
  bool retention = false;  ///< of a model that is trained
  bool together = false;
};
[[nodiscard]] ModelChoice choice_of(const MemoryPlan& plan, spec::ModelId model,
                                    ChoiceParts parts = {});
/// Of each part the one that takes less of the device, but for inputs of blocks that rest on disk: a choice that drafts
/// can have where they can have both.
[[nodiscard]] ModelChoice smaller_of(const ModelChoice& a, const ModelChoice& b);
[[nodiscard]] VariantChoice smaller_of(const VariantChoice& a, const VariantChoice& b);

/// Null: the model may run in any way.
[[nodiscard]] const ModelChoice* choice_for(const std::vector<ModelChoice>& fixed,
                                            spec::ModelId model);
/// Whether the modes are those of `fixed`, whatever blocks compute again and micro-batches go through them together.
[[nodiscard]] bool modes_follow(const std::vector<ModelChoice>& fixed,
                                const spec::ModelModes& modes);

}  // namespace neap::plan
