// Ids of tags and phases for plans without models.
#pragma once

#include <array>
#include <cstddef>

#include "spec/recipe/recipe.h"

namespace neap::plan {

constexpr spec::TagId kWeights{spec::TagKind::kWeights, spec::ModelId::kActor};
constexpr spec::TagId kGradients{spec::TagKind::kGradients, spec::ModelId::kActor};
constexpr spec::TagId kOptimizer{spec::TagKind::kOptimizer, spec::ModelId::kActor};
constexpr spec::TagId kKeyValues{spec::TagKind::kKeyValues, spec::ModelId::kActor};
constexpr spec::TagId kReferenceWeights{spec::TagKind::kWeights, spec::ModelId::kReference};
constexpr spec::TagId kCriticWeights{spec::TagKind::kWeights, spec::ModelId::kCritic};
constexpr spec::TagId kCriticGradients{spec::TagKind::kGradients, spec::ModelId::kCritic};
constexpr spec::TagId kCriticOptimizer{spec::TagKind::kOptimizer, spec::ModelId::kCritic};
constexpr spec::TagId kRewardWeights{spec::TagKind::kWeights, spec::ModelId::kReward};

/// One of 16 tags that are stored alike.
inline spec::TagId some_tag(std::size_t n) {
  constexpr std::array kKinds = {spec::TagKind::kWeights, spec::TagKind::kAdapter,
                                 spec::TagKind::kGradients, spec::TagKind::kOptimizer};
  return {kKinds.at(n / spec::kModels), static_cast<spec::ModelId>(n % spec::kModels)};
}
inline spec::PhaseId some_phase(std::size_t n) {
  return static_cast<spec::PhaseId>(n % spec::kPhases);
}

}  // namespace neap::plan
