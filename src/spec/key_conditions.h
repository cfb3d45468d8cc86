// When keys are read, for the tables of Job::bind().
//
// Threads   values.   Failure   none.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "spec/job.h"

namespace neap::spec {

/// Where the key `path` has one of `values`.
[[nodiscard]] inline ConfigCondition where(std::string path, std::vector<Json> values) {
  return {.key = std::move(path), .values = std::move(values)};
}

/// As where(); to forget the other key is an error, with what happens then.
[[nodiscard]] inline ConfigCondition needs(std::string path, std::vector<Json> values,
                                           std::string otherwise = {}) {
  return {.key = std::move(path),
          .values = std::move(values),
          .unread = Unread::kForgotten,
          .otherwise = std::move(otherwise)};
}

/// As needs(), by `holds`, which `words` say.
[[nodiscard]] inline ConfigCondition needs(std::string path, std::string words,
                                           std::function<bool()> holds,
                                           std::string otherwise = {}) {
  return {.key = std::move(path),
          .holds = std::move(holds),
          .words = std::move(words),
          .unread = Unread::kForgotten,
          .otherwise = std::move(otherwise)};
}

/// Where the job's task is one of those that `fits` is true of.
[[nodiscard]] ConfigCondition of_tasks(bool (*fits)(const Job& job));
[[nodiscard]] inline ConfigCondition of_task(Task task) {
  return where("task", {std::string(to_string(task))});
}
/// Of the tasks that train.
[[nodiscard]] ConfigCondition of_training();
[[nodiscard]] ConfigCondition of_policies();
[[nodiscard]] ConfigCondition of_responses();
/// Of sft, reward and dpo, whose rows have their responses.
[[nodiscard]] ConfigCondition of_given_responses();

/// The key that says whether ppo's and grpo's sequences are packed.
inline const std::string kPacksPolicy = "actor_rollout_ref.actor.use_dynamic_bsz";
/// And the rows of sft, reward and dpo.
inline const std::string kPacksRows = "data.use_dynamic_bsz";

}  // namespace neap::spec
