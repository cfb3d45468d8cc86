// Parts of Job::bind(): each function binds the keys of some sections.
//
// Threads   values.
// Failure   none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "spec/job/job.h"
#include "spec/keys/key_conditions.h"

namespace neap::spec {

template <class Enum>
ConfigTable::Key& bind_enum(ConfigTable& t, const std::string& path, Enum* field,
                            Result<Enum> (*parse)(std::string_view), std::string help) {
  return t.bind(
      path, field,
      [field, parse](const std::string& text) -> Status {
        NEAP_TRY_ASSIGN(*field, parse(text));
        return {};
      },
      [field] { return std::string(to_string(*field)); }, std::move(help));
}

/// For a key with a list of values.
template <class Enum>
ConfigTable::Key& bind_enums(ConfigTable& t, const std::string& path, std::vector<Enum>* field,
                             Result<Enum> (*parse)(std::string_view), std::string help) {
  return t.bind(
      path, field,
      [field, parse](const std::vector<std::string>& texts) -> Status {
        std::vector<Enum> values;
        for (const std::string& text : texts) {
          NEAP_TRY_ASSIGN(const Enum value, parse(text));
          values.push_back(value);
        }
        *field = std::move(values);
        return {};
      },
      [field] {
        std::vector<std::string> texts;
        for (const Enum value : *field) texts.emplace_back(to_string(value));
        return texts;
      },
      std::move(help));
}

/// Sections that occur several times in a file (actor and critic, actor and reward model) are bound
/// at a path. A model that is not trained has only the path keys.
void bind_model(ConfigTable& t, const std::string& at, ModelConfig& m, const std::string& path_help,
                bool trainable);
void bind_optimizer(ConfigTable& t, const std::string& at, OptimizerConfig& o);
void bind_loss_aggregation(ConfigTable& t, const std::string& path, LossAggregation* field);

void bind_data(ConfigTable& t, Job& job);
/// Checks what depends on several keys of [data].
[[nodiscard]] Status validate_data(const DataConfig& d);
void bind_parallel(ConfigTable& t, Job& job);
/// Binds the parallel keys of one model at a path. `zero` is set if the plan chooses the ZeRO
/// stage.
void bind_placement(ConfigTable& t, const std::string& at, ModelPlacement& p, bool* zero,
                    const Job& job);
void bind_actor(ConfigTable& t, Job& job);
/// Also binds the reference, whose log-probabilities are computed with the rollout's.
void bind_rollout(ConfigTable& t, Job& job);
void bind_algorithm(ConfigTable& t, Job& job);
void bind_dpo(ConfigTable& t, DpoConfig& d);
void bind_trainer(ConfigTable& t, Job& job);
/// Sets the default of a key in tasks for which `fits` returns true.
void default_of_tasks(ConfigTable::Key& key, const Job& job, bool (*fits)(const Job& job),
                      Json value);

}  // namespace neap::spec
