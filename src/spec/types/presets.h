// Defaults of other systems, which `algorithm.preset` applies to keys that a job does not set.
//
// Threads   stateless functions.
// Failure   kInvalidArgument for an unknown name.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "spec/types/loss_kinds.h"
#include "spec/types/task.h"

namespace neap::spec {

constexpr std::array<std::string_view, 3> kPresetNames = {"verl", "openrlhf", "trl"};

/// A key's default in each system, in the order of kPresetNames.
struct PresetEntry {
  std::string_view key;
  std::vector<Task> tasks;                 ///< tasks that it applies to
  std::array<std::string_view, 3> values;  ///< as TOML; empty: the system has no such default
  std::optional<AdvantageEstimator> estimator = {};  ///< only with this estimator
};
[[nodiscard]] const std::vector<PresetEntry>& preset_entries();

/// Assigns the preset's values for the task to keys of `table` that neither the file nor an
/// override sets. An empty name changes nothing.
[[nodiscard]] Status apply_preset(ConfigTable& table, std::string_view preset, Task task,
                                  AdvantageEstimator estimator);

}  // namespace neap::spec
