// Conditions under which keys are read, for the tables of Job::bind().
//
// Threads   values.
// Failure   none.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "spec/job/job.h"

namespace neap::spec {

/// The key is read if key `path` has one of `values`.
[[nodiscard]] inline ConfigCondition where(std::string path, std::vector<Json> values) {
  return {.key = std::move(path), .values = std::move(values)};
}

/// As where(), but setting the key without `path` is an error. `otherwise` says what would happen.
[[nodiscard]] inline ConfigCondition needs(std::string path, std::vector<Json> values,
                                           std::string otherwise = {}) {
  return {.key = std::move(path),
          .values = std::move(values),
          .unread = Unread::kForgotten,
          .otherwise = std::move(otherwise)};
}

/// As needs(), with the condition `holds`. `words` describe it.
[[nodiscard]] inline ConfigCondition needs(std::string path, std::string words,
                                           std::function<bool()> holds,
                                           std::string otherwise = {}) {
  return {.key = std::move(path),
          .holds = std::move(holds),
          .words = std::move(words),
          .unread = Unread::kForgotten,
          .otherwise = std::move(otherwise)};
}

/// The key is read in tasks for which `fits` returns true.
[[nodiscard]] ConfigCondition of_tasks(bool (*fits)(const Job& job));
[[nodiscard]] inline ConfigCondition of_task(Task task) {
  return where("task", {std::string(to_string(task))});
}
/// In tasks that train.
[[nodiscard]] ConfigCondition of_training();
[[nodiscard]] ConfigCondition of_policies();
[[nodiscard]] ConfigCondition of_responses();
/// In sft, reward and dpo, whose data contain the responses.
[[nodiscard]] ConfigCondition of_given_responses();

/// The key that packs the sequences of ppo and grpo.
inline const std::string kPacksPolicy = "actor_rollout_ref.actor.use_dynamic_bsz";
/// The key that packs the rows of sft, reward and dpo.
inline const std::string kPacksRows = "data.use_dynamic_bsz";

}  // namespace neap::spec
