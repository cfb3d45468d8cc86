#include "spec/task.h"

#include <array>

#include "spec/names.h"

namespace neap::spec {
namespace {

// Indexed by the enums.
constexpr std::array<std::string_view, 6> kTaskNames = {"sft",  "reward", "ppo",
                                                        "grpo", "dpo",    "eval"};
constexpr std::array<std::string_view, kUpdateModes> kModeNames = {"none", "phase_split", "cpu",
                                                                   "nvme"};
constexpr std::string_view kAuto = "auto";
constexpr std::array<std::string_view, 2> kResidencyNames = {kAuto, "none"};
constexpr std::array<std::string_view, kModels> kModelNames = {"actor", "reference", "critic",
                                                               "reward"};

}  // namespace

std::vector<std::string> task_names() {
  return {kTaskNames.begin(), kTaskNames.end()};
}

std::string_view to_string(Task task) {
  return kTaskNames[static_cast<std::size_t>(task)];
}

Result<Task> parse_task(std::string_view name) {
  return parse_name<Task>(kTaskNames, name, "task");
}

std::string_view to_string(ModelId model) {
  return kModelNames[static_cast<std::size_t>(model)];
}

std::vector<std::string> residency_names() {
  return {kResidencyNames.begin(), kResidencyNames.end()};
}

std::string_view to_string(Residency residency) {
  return kResidencyNames[static_cast<std::size_t>(residency)];
}

Result<Residency> parse_residency(std::string_view name) {
  return parse_name<Residency>(kResidencyNames, name, "memory.offload");
}

std::string_view to_string(UpdateMode mode) {
  return kModeNames[static_cast<std::size_t>(mode)];
}

std::vector<std::string> update_choice_names() {
  std::vector<std::string> names = {std::string(kAuto)};
  names.insert(names.end(), kModeNames.begin(), kModeNames.end());
  return names;
}

std::string_view to_string(UpdateChoice choice) {
  return choice.automatic ? kAuto : to_string(choice.mode);
}

Result<UpdateChoice> parse_update_choice(std::string_view name) {
  if (name == kAuto) return UpdateChoice{};
  NEAP_TRY_ASSIGN(const UpdateMode mode,
                  parse_name<UpdateMode>(kModeNames, name, "memory.optimizer_offload"));
  return UpdateChoice{false, mode};
}

}  // namespace neap::spec
