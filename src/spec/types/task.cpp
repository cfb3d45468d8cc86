#include "spec/types/task.h"

#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<Task> kTasks[] = {
    {"sft", Task::kSft},   {"reward", Task::kReward}, {"ppo", Task::kPpo},
    {"grpo", Task::kGrpo}, {"dpo", Task::kDpo},       {"eval", Task::kEval},
};
constexpr Named<UpdateMode> kUpdateModeNames[] = {
    {"none", UpdateMode::kJoined},
    {"phase_split", UpdateMode::kSplit},
    {"cpu", UpdateMode::kStreamed},
    {"nvme", UpdateMode::kDisk},
};
static_assert(std::size(kUpdateModeNames) == kUpdateModes);
constexpr std::string_view kAuto = "auto";
constexpr Named<Residency> kResidencies[] = {{kAuto, Residency::kAuto}, {"none", Residency::kAll}};
constexpr Named<Colocation> kColocations[] = {
    {"stages", Colocation::kStages},
    {"whole", Colocation::kWhole},
    {"reload", Colocation::kReload},
    {"resident", Colocation::kResident},
};
constexpr Named<ModelId> kModelNames[] = {
    {"actor", ModelId::kActor},
    {"reference", ModelId::kReference},
    {"critic", ModelId::kCritic},
    {"reward", ModelId::kReward},
};
static_assert(std::size(kModelNames) == kModels);

}  // namespace

std::vector<std::string> task_names() {
  return names_of(kTasks);
}

std::string_view to_string(Task task) {
  return name_of(kTasks, task);
}

Result<Task> parse_task(std::string_view name) {
  return parse_name(kTasks, name, "task");
}

std::string_view to_string(ModelId model) {
  return name_of(kModelNames, model);
}

std::vector<std::string> residency_names() {
  return names_of(kResidencies);
}

std::string_view to_string(Residency residency) {
  return name_of(kResidencies, residency);
}

Result<Residency> parse_residency(std::string_view name) {
  return parse_name(kResidencies, name, "memory.offload");
}

std::vector<std::string> colocation_names() {
  return names_of(kColocations);
}

std::string_view to_string(Colocation colocation) {
  return name_of(kColocations, colocation);
}

Result<Colocation> parse_colocation(std::string_view name) {
  return parse_name(kColocations, name, "rollout.colocation");
}

std::string_view to_string(UpdateMode mode) {
  return name_of(kUpdateModeNames, mode);
}

std::vector<std::string> update_choice_names() {
  std::vector<std::string> names = names_of(kUpdateModeNames);
  names.emplace(names.begin(), kAuto);
  return names;
}

std::string_view to_string(UpdateChoice choice) {
  return choice.automatic ? kAuto : to_string(choice.mode);
}

Result<UpdateChoice> parse_update_choice(std::string_view name) {
  if (name == kAuto) return UpdateChoice{};
  NEAP_TRY_ASSIGN(const UpdateMode mode,
                  parse_name(kUpdateModeNames, name, "memory.optimizer_offload"));
  return UpdateChoice{false, mode};
}

}  // namespace neap::spec
