// Tasks, models, memory.offload, rollout.colocation, and how updates are divided into phases.
//
// Threads   values and stateless functions.
// Failure   kInvalidArgument for an unknown name.
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
  kEval,  ///< trains nothing; generates responses to held-out prompts and scores them
};
[[nodiscard]] std::vector<std::string> task_names();
[[nodiscard]] std::string_view to_string(Task task);
[[nodiscard]] Result<Task> parse_task(std::string_view name);

enum class ModelId : std::uint8_t { kActor, kReference, kCritic, kReward };
constexpr std::size_t kModels = 4;
/// Also the name of its folder in a checkpoint.
[[nodiscard]] std::string_view to_string(ModelId model);

/// memory.offload: the plan decides what is offloaded between phases, or everything stays.
enum class Residency : std::uint8_t { kAuto, kAll };
[[nodiscard]] std::vector<std::string> residency_names();
[[nodiscard]] std::string_view to_string(Residency residency);
[[nodiscard]] Result<Residency> parse_residency(std::string_view name);

/// rollout.colocation: how a rollout and training share a device. All but kStages give the rollout a
/// copy of the weights.
enum class Colocation : std::uint8_t {
  kStages,    ///< a tag comes when a phase needs it, and leaves for tags that need its memory
  kWhole,     ///< all tags of the rollout come at once, while the trained weights are on the device
  kReload,    ///< the rollout's weights pass through a file; then all its tags come at once
  kResident,  ///< every tag stays on the device
};
[[nodiscard]] std::vector<std::string> colocation_names();
[[nodiscard]] std::string_view to_string(Colocation colocation);
[[nodiscard]] Result<Colocation> parse_colocation(std::string_view name);

/// The data on the device while a model is trained. Results are bitwise identical.
enum class UpdateMode : std::uint8_t {
  kJoined,    ///< one phase with weights, gradients, activations and optimizer states
  kSplit,     ///< backward without optimizer states, then the update without activations
  kStreamed,  ///< as kSplit, but the update loads optimizer states part by part from host memory
  kDisk,      ///< as kStreamed, but the states are on disk
};
constexpr std::size_t kUpdateModes = 4;
[[nodiscard]] std::string_view to_string(UpdateMode mode);

/// memory.optimizer_offload: one of the modes, or chosen by the plan.
struct UpdateChoice {
  bool automatic = true;
  UpdateMode mode = UpdateMode::kJoined;  ///< used unless automatic
  friend bool operator==(const UpdateChoice&, const UpdateChoice&) = default;
};
[[nodiscard]] std::vector<std::string> update_choice_names();
[[nodiscard]] std::string_view to_string(UpdateChoice choice);
[[nodiscard]] Result<UpdateChoice> parse_update_choice(std::string_view name);

}  // namespace neap::spec
