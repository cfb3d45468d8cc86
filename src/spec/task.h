// What a job does with which models, what stays on the device, and how updates are divided into phases.
//
// Threads   values and functions without state.   Failure   kInvalidArgument for an unknown name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

enum class Task : std::uint8_t {
  kSft,
  kReward,
  kPpo,
  kGrpo,
  kDpo,
  kEval,  ///< trains nothing: responses to held-out prompts and their scores
};
[[nodiscard]] std::vector<std::string> task_names();
[[nodiscard]] std::string_view to_string(Task task);
[[nodiscard]] Result<Task> parse_task(std::string_view name);

enum class ModelId : std::uint8_t { kActor, kReference, kCritic, kReward };
constexpr std::size_t kModels = 4;
/// Also its folder in a checkpoint.
[[nodiscard]] std::string_view to_string(ModelId model);

/// memory.offload: whether the plan decides what leaves the device between phases, or all stays.
enum class Residency : std::uint8_t { kAuto, kAll };
[[nodiscard]] std::vector<std::string> residency_names();
[[nodiscard]] std::string_view to_string(Residency residency);
[[nodiscard]] Result<Residency> parse_residency(std::string_view name);

/// What is on the device at once while a model is trained. Results are the same, bit by bit.
enum class UpdateMode : std::uint8_t {
  kJoined,    ///< one phase: weights, gradients, activations and optimizer state
  kSplit,     ///< backward without optimizer state, then the update without activations
  kStreamed,  ///< split, and the update brings the optimizer states part by part
  kDisk,      ///< streamed, and they rest on disk instead of on the host
};
constexpr std::size_t kUpdateModes = 4;
/// The update brings the states from where they rest.
[[nodiscard]] constexpr bool streams_states(UpdateMode mode) {
  return mode == UpdateMode::kStreamed || mode == UpdateMode::kDisk;
}
[[nodiscard]] std::string_view to_string(UpdateMode mode);

/// memory.optimizer_offload: one of the modes, or the plan's choice.
struct UpdateChoice {
  bool automatic = true;
  UpdateMode mode = UpdateMode::kJoined;  ///< unless automatic
  friend bool operator==(const UpdateChoice&, const UpdateChoice&) = default;
};
[[nodiscard]] std::vector<std::string> update_choice_names();
[[nodiscard]] std::string_view to_string(UpdateChoice choice);
[[nodiscard]] Result<UpdateChoice> parse_update_choice(std::string_view name);

}  // namespace neap::spec
