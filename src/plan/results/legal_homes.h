// Which homes (spec/types/homes.h) the tensors of a model can have.
//
// Threads   stateless functions.
#pragma once

#include <optional>
#include <string_view>

#include "plan/results/model_roles.h"

namespace neap::plan {

/// Why the model cannot have these homes; empty: it can.
[[nodiscard]] std::string_view illegal_reason(const spec::ModelStorage& homes,
                                              const ModelRole& role);
/// `wanted`, without tables, inputs or gradients that the model cannot have there. nullopt: its
/// layers cannot be there.
[[nodiscard]] std::optional<spec::ModelHomes> nearest_legal(const spec::ModelStorage& wanted,
                                                            const ModelRole& role);

}  // namespace neap::plan
