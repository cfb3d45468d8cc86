#include "spec/keys/key_conditions.h"

namespace neap::spec {

ConfigCondition of_tasks(bool (*fits)(const Job& job)) {
  ConfigCondition condition{.key = "task"};
  Job probe;
  for (const std::string& name : task_names()) {
    probe.task = *parse_task(name);
    if (fits(probe)) condition.values.emplace_back(name);
  }
  return condition;
}

ConfigCondition of_training() {
  return of_tasks([](const Job& job) { return job.task != Task::kEval; });
}
ConfigCondition of_policies() {
  return of_tasks([](const Job& job) { return job.trains_policy(); });
}
ConfigCondition of_responses() {
  return of_tasks([](const Job& job) { return job.has_rollout(); });
}
ConfigCondition of_given_responses() {
  return of_tasks([](const Job& job) { return !job.has_rollout(); });
}

}  // namespace neap::spec
