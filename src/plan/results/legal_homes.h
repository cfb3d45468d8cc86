// Which homes (spec/types/homes.h) the tensors of a model can have.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string_view>

#include "plan/results/model_roles.h"

namespace neap::plan {

/// Whether a rank's layers are more than the prefetch buffers hold, so that offloading them saves
/// memory. A ZeRO-3 shard passes through the buffers range by range.
[[nodiscard]] bool exceeds_buffers(const spec::ModelStorage& homes, const ModelRole& role);
/// Whether the model can have these homes.
[[nodiscard]] bool is_legal(const spec::ModelStorage& homes, const ModelRole& role);
/// `wanted`, without tables, inputs or gradients that the model cannot have there. nullopt: its
/// layers cannot be there.
[[nodiscard]] std::optional<spec::ModelHomes> nearest_legal(const spec::ModelStorage& wanted,
                                                            const ModelRole& role);

/// For a tag with a model's weights: why no plan offloads them, or those that are left there with
/// these homes. Empty: a plan can.
[[nodiscard]] std::string_view kept_reason(spec::TagKind tag, const spec::ModelStorage& homes,
                                           const ModelRole& role, const spec::Recipe& recipe);

}  // namespace neap::plan
