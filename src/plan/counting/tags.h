// The data that outlive a phase: the tags of a job, their regions, and where they are needed.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <vector>

#include "plan/results/memory_plan.h"
#include "plan/results/model_roles.h"
#include "spec/recipe/recipe.h"

namespace neap::plan {

/// The sizes of tags, for jobs that differ only in micro-batches and in types of optimizer states.
struct TagSizes {
  struct Key {
    spec::TagId tag;
    spec::ModelStorage storage;
    bool stores_weights = false;
    std::optional<spec::Batching> training;  ///< of the model
    spec::Dtype states{};                    ///< of the model's optimizer
    std::int64_t rollout_batch = 0;
    std::int64_t cache_pages = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, TagPlan> known;
};

/// Tags with regions and needs, in the order of the recipe. With several GPU ranks, NCCL's memory
/// is added. Sizes are looked up in `sizes`, or added to it.
[[nodiscard]] std::vector<TagPlan> build_tags(const spec::Job& job, const spec::Recipe& recipe,
                                              const JobModels& models, const Target& target,
                                              TagSizes&& sizes = {});
[[nodiscard]] std::vector<TagPlan> build_tags(const spec::Job& job, const spec::Recipe& recipe,
                                              const JobModels& models, const Target& target,
                                              TagSizes& sizes);

/// Sizes the tag of graphs by the phases, and adds the driver's memory for them. Does nothing if the plan has none.
void size_graphs(std::vector<TagPlan>& tags, const std::vector<PhasePlan>& phases,
                 Bytes granularity);

/// Places parts, in order, into regions of at least `enough` bytes. A part is never split.
[[nodiscard]] std::vector<RegionPlan> pack_regions(const std::vector<PartPlan>& parts,
                                                   Bytes enough);

}  // namespace neap::plan
