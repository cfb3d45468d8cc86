#include <optional>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "spec/job/job.h"
#include "spec/keys/default_lengths.h"
#include "spec/keys/degrees.h"
#include "spec/keys/micro_batches.h"
#include "spec/keys/token_budgets.h"
#include "spec/model/adapter_config.h"
#include "spec/types/presets.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

// Takes the adapter's shape from the adapter that training continues, instead of from the keys.
Status read_adapter(const Job& job, const ConfigTable& table, const std::string& at,
                    const std::string& base, ModelId id, ModelConfig& m) {
  if (m.lora_adapter_path.empty()) return {};
  const std::filesystem::path folder = job.resolve(m.lora_adapter_path);
  NEAP_TRY_ASSIGN(const ModelFiles files, job.model_files(id, base));
  std::error_code ignored;
  if (!files.adapter.empty() && std::filesystem::equivalent(files.adapter, folder, ignored))
    return wrong(
        format("{0}.lora_adapter_path and {0}.path both give the adapter in {1}, which would be "
               "added twice; give the model without it as {0}.path",
               at, folder.string()));
  NEAP_TRY_ASSIGN(const Architecture model, job.configs.architecture(files.base));
  NEAP_TRY_ASSIGN(AdapterConfig config, AdapterConfig::from_folder(folder, model));
  const std::string where = (folder / kAdapterConfig).string();
  NEAP_TRY(config.check_trainable(where, model));
  const auto is_other = [&](const char* key, bool differs) {
    return differs && table.find(at + key)->is_set;
  };
  if (is_other(".lora_rank", m.lora.rank != config.lora.rank) ||
      is_other(".lora_alpha", m.lora.alpha != config.lora.alpha))
    return wrong(format("{} has r {} and lora_alpha {}; leave {}.lora_rank and {}.lora_alpha out",
                        where, config.lora.rank, config.lora.alpha, at, at));
  if (table.find(at + ".target_modules")->is_set)
    return wrong(
        format("{}.target_modules is set, but the adapter in {} has its own layers; leave "
               "it out",
               at, folder.string()));
  m.lora = std::move(config.lora);
  return {};
}

// Names the keys with "auto" that have their defaults, because no plan chooses them here.
std::optional<std::string> note_on_defaults(const AutomaticDegrees& automatic) {
  std::vector<std::string> paths;
  for (const DegreeKey& key : kDegreeKeys)
    if (automatic.*key.automatic) paths.emplace_back(key.path);
  if (paths.empty()) return std::nullopt;
  return format("What is \"auto\" has its default here: {}. `neap train` and `neap plan` choose it",
                joined(paths, ", "));
}

}  // namespace

Status Job::load(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                 Job& job, OpenDegrees open) {
  ConfigTable table = job.bind();
  if (!file.empty()) NEAP_TRY(table.load_file(file));
  // `neap eval` accepts a training configuration and ignores most of it.
  const bool is_of_training = job.task != Task::kEval;
  job.folder = file.parent_path();
  for (const std::string& text : overrides) NEAP_TRY(table.apply_override(text));
  if (job.task == Task::kEval) open = OpenDegrees::kNone;
  const std::optional<std::string> defaults =
      open == OpenDegrees::kNone ? note_on_defaults(job.parallel.automatic) : std::nullopt;
  open_degrees(open, table, job.parallel);
  if (job.parallel.automatic.any()) return {};
  const auto is_set = [&](std::string_view key) { return table.find(key)->is_set; };
  NEAP_TRY(table.apply_defaults());
  NEAP_TRY(apply_preset(table, job.algorithm.preset, job.task, job.algorithm.adv_estimator));
  if (is_set("actor_rollout_ref.actor.clip_ratio")) {
    if (!is_set("actor_rollout_ref.actor.clip_ratio_low"))
      job.actor.clip_ratio_low = job.actor.clip_ratio;
    if (!is_set("actor_rollout_ref.actor.clip_ratio_high"))
      job.actor.clip_ratio_high = job.actor.clip_ratio;
  }
  const ConfigTable::Key& stop_metric = *table.find("trainer.stop_metric");
  const bool taken_back = !stop_metric.is_set && !stop_metric.origin.empty();
  if (job.task != Task::kEval && !taken_back && stop_metric.is_set && !is_set("trainer.stop_value"))
    return wrong("trainer.stop_metric is set without trainer.stop_value, which ends the training");
  NEAP_TRY(job.reward.validate(table));
  NEAP_TRY(job.read_adapters(table));
  const auto for_training = [&](const std::string& origin) {
    return job.task == Task::kEval && is_of_training && !origin.starts_with('"');
  };
  NEAP_TRY_ASSIGN(job.warnings, table.unread(for_training));
  if (defaults) job.warnings.push_back(*defaults);
  NEAP_TRY_ASSIGN(job.adapted, adapt_lengths(table, job));
  NEAP_TRY_ASSIGN(const auto budgets, adapt_token_budgets(table, job, for_training));
  job.adapted.insert(job.adapted.end(), budgets.begin(), budgets.end());
  NEAP_TRY_ASSIGN(const auto micro_batches, adapt_micro_batches(table, job));
  job.adapted.insert(job.adapted.end(), micro_batches.begin(), micro_batches.end());
  const Status valid = job.validate();
  return file.empty() ? valid : Status(valid).with_context(format("checking {}", file.string()));
}

// Adapters of the models that the task trains. `neap eval` merges the actor's adapter.
Status Job::read_adapters(const ConfigTable& table) {
  if (task == Task::kEval) return {};
  NEAP_TRY(read_adapter(*this, table, "actor_rollout_ref.model", actor_model.path, main_model(),
                        actor_model));
  if (!has_critic()) return {};
  return read_adapter(*this, table, "critic.model", critic_path(), ModelId::kCritic, critic.model);
}

}  // namespace neap::spec
