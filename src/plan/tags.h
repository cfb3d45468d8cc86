// The data that outlive a phase: the tags of a job, their regions, and where they are needed.
#pragma once

#include <vector>

#include "plan/memory_plan.h"
#include "plan/model_roles.h"
#include "spec/recipe.h"

namespace neap::plan {

/// Tags with regions and needs, in the order of the recipe. With several GPU ranks, NCCL's memory
/// is added.
[[nodiscard]] std::vector<TagPlan> build_tags(const spec::Job& job, const spec::Recipe& recipe,
                                              const JobModels& models, const Target& target);

/// Places parts, in order, into regions of at least `enough` bytes. A part is never split.
[[nodiscard]] std::vector<RegionPlan> pack_regions(const std::vector<PartPlan>& parts,
                                                   Bytes enough);

}  // namespace neap::plan
