#include "spec/task.h"

#include <algorithm>
#include <array>

#include "base/format.h"

namespace neap::spec {
namespace {

// Indexed by the enums.
constexpr std::array<std::string_view, 6> kTaskNames = {"sft",  "reward", "ppo",
                                                        "grpo", "dpo",    "eval"};
constexpr std::array<std::string_view, kUpdateModes> kModeNames = {"joined", "split", "streamed"};
constexpr std::string_view kAuto = "auto";
constexpr std::array<std::string_view, 2> kResidencyNames = {kAuto, "all"};

template <std::size_t N>
Result<std::size_t> position(const std::array<std::string_view, N>& names, std::string_view name,
                             std::string_view key) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
  std::string known;
  for (const std::string_view each : names)
    known += (known.empty() ? "" : ", ") + std::string(each);
  return Status(ErrorCode::kInvalidArgument,
                format("{} is \"{}\"; it can be {}", key, name, known));
}

}  // namespace

std::vector<std::string> task_names() {
  return {kTaskNames.begin(), kTaskNames.end()};
}

std::string_view to_string(Task task) {
  return kTaskNames[static_cast<std::size_t>(task)];
}

Result<Task> parse_task(std::string_view name) {
  NEAP_TRY_ASSIGN(const std::size_t at, position(kTaskNames, name, "task"));
  return static_cast<Task>(at);
}

std::vector<std::string> residency_names() {
  return {kResidencyNames.begin(), kResidencyNames.end()};
}

std::string_view to_string(Residency residency) {
  return kResidencyNames[static_cast<std::size_t>(residency)];
}

Result<Residency> parse_residency(std::string_view name) {
  NEAP_TRY_ASSIGN(const std::size_t at, position(kResidencyNames, name, "memory.residency"));
  return static_cast<Residency>(at);
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
  NEAP_TRY_ASSIGN(const std::size_t at, position(kModeNames, name, "memory.update"));
  return UpdateChoice{false, static_cast<UpdateMode>(at)};
}

}  // namespace neap::spec
