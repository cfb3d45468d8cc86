// Describes the parallel sizes of each model in a plan.
//
// Threads   stateless functions.
// Failure   none.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/json.h"
#include "spec/job/job.h"
#include "spec/types/mesh.h"

namespace neap::plan {

inline constexpr std::array<std::string_view, spec::kAxes> kAxisNames = {"pipe", "data", "context",
                                                                         "tensor"};
/// "data 2 x tensor 4, ZeRO shard group of 2"; "1" for one rank.
[[nodiscard]] std::string axes_text(const spec::Mesh& mesh);
[[nodiscard]] Json axes_json(const spec::Mesh& mesh);

/// One line per model, or one line for all if they are the same. Empty for one rank.
[[nodiscard]] std::string placements_text(const spec::Job& job);
/// Per model: docs/json.md.
[[nodiscard]] Json placements_json(const spec::Job& job);

}  // namespace neap::plan
