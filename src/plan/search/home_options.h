// The homes that a search may give to each model, with lower bounds of what they take, and their
// combinations.
//
// Bounds  a phase runs one model, so seconds and bytes of a model's phases do not depend on the
//         homes of other models. The bounds of a combination are sums and maxima of its models'.
// Threads stateless functions.
// Cost    of combinations: microseconds to a millisecond.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include "plan/results/memory_plan.h"
#include "plan/results/model_roles.h"
#include "plan/search/model_choice.h"

namespace neap::plan {

/// Whether layers and their inputs are on the device.
[[nodiscard]] bool is_resident(const spec::ModelHomes& homes);
/// Homes of a model, and the least that its phases take with them.
struct HomeOption {
  spec::ModelHomes homes;
  double seconds = 0;  ///< of a step, without recomputation and waits for groups
  double peers = 0;    ///< the part of `seconds` that waits for other ranks
  double waits = 0;    ///< that groups of micro-batches may remove
  bool open = false;   ///< groups may also save operations
  Bytes needed{};      ///< memory of the largest phase
  Bytes scratch{};     ///< the part of it that no other phase keeps
  Bytes kept{};        ///< tags that are on the device, or moved, in the phases of other models
  Bytes host{};
};
struct ModelOptions {
  spec::ModelId model = spec::ModelId::kActor;
  std::vector<HomeOption> options;
};

/// The homes that memory.optimizer_offload, memory.allow and fixed choices permit a model; the
/// device first, and fewer phases first. Nothing is offloaded if everything is to stay, unless
/// memory.optimizer_offload says so. `offloads`: homes with layers or their inputs off the device are
/// included.
[[nodiscard]] std::vector<spec::ModelHomes> permitted_homes(const spec::Job& job,
                                                            const Target& target,
                                                            const ModelRole& role,
                                                            const std::vector<ModelChoice>& fixed,
                                                            bool offloads);
struct HomeLimits {
  Bytes capacity{};  ///< zero: unlimited
  Bytes host{};      ///< zero: unlimited
  double seconds = std::numeric_limits<double>::infinity();
  double bytes_per_second = 0;  ///< of moves
};
/// One option of each model.
struct HomeCombination {
  std::array<std::size_t, spec::kModels> options{};
  double seconds = 0;   ///< the sum
  double estimate = 0;  ///< with the moves of what does not fit
  Bytes needed{}, scratch{}, kept{}, host{};
};
/// The combinations that may be within the limits, in the order of their estimates.
[[nodiscard]] std::vector<HomeCombination> combinations(const std::vector<ModelOptions>& models,
                                                        const HomeLimits& limits);

}  // namespace neap::plan
