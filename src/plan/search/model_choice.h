// A plan's choices for a model, and choices that a plan must keep.
//
// Threads   values and stateless functions.
#pragma once

#include <optional>
#include <vector>

#include "plan/results/memory_plan.h"
#include "spec/model/checkpointing.h"
#include "spec/recipe/recipe.h"

namespace neap::plan {

/// Any number of micro-batches per load of a layer.
inline constexpr spec::ModelHomes kAnyTogether{.together = 0};
struct ModelChoice {
  spec::ModelId model = spec::ModelId::kActor;
  spec::ModelHomes homes = kAnyTogether;
  std::optional<spec::Checkpointing> retention{};  ///< nullopt: any
  friend bool operator==(const ModelChoice&, const ModelChoice&) = default;
};

/// Choices that a plan must keep, for some models and for the job.
struct FixedChoices {
  std::vector<ModelChoice> models{};
  std::optional<VariantChoice> variant{};  ///< nullopt: any
  [[nodiscard]] bool empty() const { return models.empty() && !variant; }
  friend bool operator==(const FixedChoices&, const FixedChoices&) = default;
};

/// The parts of a choice in addition to the homes.
struct ChoiceParts {
  bool retention = false;  ///< checkpointing of a trained model
  bool together = false;
};
[[nodiscard]] ModelChoice choice_of(const MemoryPlan& plan, spec::ModelId model,
                                    ChoiceParts parts = {});
/// The option of each part that takes less device memory. Gradients of layers on disk are there,
/// so that drafts can have the combination.
[[nodiscard]] ModelChoice smaller_of(const ModelChoice& a, const ModelChoice& b);
[[nodiscard]] VariantChoice smaller_of(const VariantChoice& a, const VariantChoice& b);

/// Null if nothing is fixed for the model.
[[nodiscard]] const ModelChoice* choice_for(const std::vector<ModelChoice>& fixed,
                                            spec::ModelId model);
/// Whether the modes agree with `fixed`, ignoring checkpointing and groups of micro-batches.
[[nodiscard]] bool modes_follow(const std::vector<ModelChoice>& fixed,
                                const spec::StepModes& modes);

}  // namespace neap::plan
