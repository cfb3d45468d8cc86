#include "spec/types/presets.h"

#include <algorithm>

#include "base/format.h"

namespace neap::spec {

const std::vector<PresetEntry>& preset_entries() {
  static const std::vector<Task> kAll = {Task::kSft, Task::kReward, Task::kDpo, Task::kPpo,
                                         Task::kGrpo};
  static const std::vector<Task> kPolicy = {Task::kPpo, Task::kGrpo};
  static const std::vector<PresetEntry> kEntries = {
      {"actor_rollout_ref.actor.optim.lr", {Task::kSft}, {"1e-3", "5e-6", "2e-5"}},
      {"actor_rollout_ref.actor.optim.lr", {Task::kReward}, {"", "9e-6", "1e-4"}},
      {"actor_rollout_ref.actor.optim.lr", {Task::kDpo}, {"", "1e-5", "1e-6"}},
      {"actor_rollout_ref.actor.optim.lr", {Task::kPpo}, {"1e-6", "1e-6", "3e-6"}},
      {"actor_rollout_ref.actor.optim.lr", {Task::kGrpo}, {"1e-6", "1e-6", "1e-6"}},
      {"actor_rollout_ref.actor.optim.beta2", kAll, {"0.999", "0.95", "0.999"}},
      {"actor_rollout_ref.actor.optim.weight_decay", kAll, {"0.01", "0.0", "0.0"}},
      {"actor_rollout_ref.actor.optim.lr_scheduler_type", kAll, {"constant", "cosine", "linear"}},
      {"actor_rollout_ref.actor.optim.min_lr_ratio", kAll, {"0.0", "0.1", "0.0"}},
      {"actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", kAll, {"0.0", "0.03", "0.0"}},
      {"actor_rollout_ref.actor.grad_clip", {Task::kPpo}, {"1.0", "1.0", "0.0"}},
      {"actor_rollout_ref.actor.ppo_epochs", {Task::kPpo}, {"1", "1", "4"}},
      {"actor_rollout_ref.actor.clip_ratio_c", kPolicy, {"3.0", "0.0", "0.0"}},
      {"actor_rollout_ref.rollout.temperature", {Task::kPpo}, {"1.0", "1.0", "0.7"}},
      {"critic.optim.lr", {Task::kPpo}, {"1e-5", "9e-6", "3e-6"}},
      {"critic.optim.beta2", {Task::kPpo}, {"0.999", "0.95", "0.999"}},
      {"critic.optim.weight_decay", {Task::kPpo}, {"0.01", "0.0", "0.0"}},
      {"critic.optim.lr_scheduler_type", {Task::kPpo}, {"constant", "cosine", "linear"}},
      {"critic.optim.min_lr_ratio", {Task::kPpo}, {"0.0", "0.1", "0.0"}},
      {"critic.optim.lr_warmup_steps_ratio", {Task::kPpo}, {"0.0", "0.03", "0.0"}},
      {"critic.grad_clip", {Task::kPpo}, {"1.0", "1.0", "0.0"}},
      {"critic.ppo_epochs", {Task::kPpo}, {"1", "1", "4"}},
      {"critic.cliprange_value", {Task::kPpo}, {"0.5", "0.5", "0.2"}},
      {"algorithm.lam", {Task::kPpo}, {"1.0", "1.0", "0.95"}},
      {"algorithm.use_kl_in_reward", {Task::kPpo}, {"false", "true", "true"}},
      {"algorithm.use_kl_in_reward", {Task::kGrpo}, {"false", "true", "false"}},
      {"algorithm.use_kl_in_reward", {Task::kGrpo}, {"", "", "true"}, AdvantageEstimator::kRloo},
      {"algorithm.kl_ctrl.kl_coef", kPolicy, {"0.001", "0.01", "0.05"}},
      {"algorithm.norm_adv_eps", {Task::kGrpo}, {"1e-6", "1e-9", "1e-4"}},
      {"dpo.beta", {Task::kDpo}, {"", "0.1", "0.1"}},
  };
  return kEntries;
}

namespace {

// Parses a value as a configuration file would: a boolean, a number, or text.
Json value_of(std::string_view text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(std::string(text)) : value;
}

}  // namespace

Status apply_preset(ConfigTable& table, std::string_view preset, Task task,
                    AdvantageEstimator estimator) {
  if (preset.empty()) return {};
  const auto name = std::find(kPresetNames.begin(), kPresetNames.end(), preset);
  if (name == kPresetNames.end()) {
    return {ErrorCode::kInvalidArgument,
            format("algorithm.preset is \"{}\"; it can be verl, openrlhf, trl", preset)};
  }
  const auto column = static_cast<std::size_t>(name - kPresetNames.begin());
  for (const PresetEntry& entry : preset_entries()) {
    const std::string_view value = entry.values.at(column);
    if (value.empty() || (entry.estimator && *entry.estimator != estimator)) continue;
    if (std::find(entry.tasks.begin(), entry.tasks.end(), task) == entry.tasks.end()) continue;
    const ConfigTable::Key* key = table.find(entry.key);
    if (key == nullptr)
      return {ErrorCode::kInternal, format("a preset sets the unknown key {}", entry.key)};
    if (key->is_set) continue;
    NEAP_TRY(key->assign(value_of(value)));
  }
  return {};
}

}  // namespace neap::spec
