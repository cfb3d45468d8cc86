// Defaults of other systems: what `algorithm.preset` sets where a job says nothing else.
//
// Threads   functions without state.   Failure   kInvalidArgument for an unknown name.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "spec/loss_kinds.h"
#include "spec/task.h"

namespace neap::spec {

constexpr std::array<std::string_view, 3> kPresetNames = {"verl", "openrlhf", "trl"};

/// One key's values in the systems, in the order of kPresetNames.
struct PresetEntry {
  std::string_view key;
  std::vector<Task> tasks;                 ///< where it applies
  std::array<std::string_view, 3> values;  ///< TOML; empty: the system has no such default
  std::optional<AdvantageEstimator> estimator = {};  ///< only with this one
};
[[nodiscard]] const std::vector<PresetEntry>& preset_entries();

/// Assigns the preset's values for the task to keys of `table` that neither file nor override set.
/// An empty name changes nothing.
[[nodiscard]] Status apply_preset(ConfigTable& table, std::string_view preset, Task task,
                                  AdvantageEstimator estimator);

}  // namespace neap::spec
